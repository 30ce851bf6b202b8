# C types of avro_arrays.py, for the compiled form. Names without an entry here are ordinary Python
# objects.
# cython: annotation_typing=False

cimport cython
from cpython cimport array


cdef class Source:
    cdef const unsigned char* data
    cdef Py_ssize_t pos, end

    @cython.locals(value=cython.ulonglong, byte=cython.ulonglong, shift=int)
    cdef long long read_long(self) except? -1
    @cython.locals(start=Py_ssize_t)
    cdef Py_ssize_t skip(self, long long length) except -1


cdef class Node:
    cdef bint read(self, Source source) except -1
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef class Numbers:
    cdef array.array values
    cdef Py_ssize_t count, room

    cdef bint push(self, long long value) except -1
    cdef to_array(self, validity)
    cdef to_offsets(self)


cdef class Integer(Node):
    cdef object kind
    cdef long long minimum, maximum, factor
    cdef bint is_boolean
    cdef Numbers numbers

    @cython.locals(value=cython.longlong)
    cdef bint read(self, Source source) except -1
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef class Raw(Node):
    cdef object kind
    cdef Py_ssize_t size
    cdef bytearray data

    @cython.locals(start=Py_ssize_t)
    cdef bint read(self, Source source) except -1
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef class Bytes(Node):
    cdef object kind
    cdef long long size
    cdef list symbols
    cdef bytearray data
    cdef Numbers ends

    @cython.locals(index=cython.longlong, length=cython.longlong, start=Py_ssize_t)
    cdef bint read(self, Source source) except -1
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef class Optional(Node):
    cdef Node inner
    cdef long long null_index
    cdef bytearray flags

    @cython.locals(index=cython.longlong)
    cdef bint read(self, Source source) except -1
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef class Record(Node):
    cdef object kind
    cdef list fields
    cdef Py_ssize_t count

    @cython.locals(node=Node)
    cdef bint read(self, Source source) except -1
    @cython.locals(node=Node)
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef class Items(Node):
    cdef object kind
    cdef Node item
    cdef long long total
    cdef Numbers ends

    @cython.locals(count=cython.longlong, _=cython.longlong)
    cdef bint read(self, Source source) except -1
    cdef bint add_null(self) except -1
    cpdef finish(self, validity)


cdef inline const unsigned char* pointer(size_t address):
    return <const unsigned char*>address


@cython.locals(
    row=Py_ssize_t, start=Py_ssize_t, index=Py_ssize_t, row_id=cython.longlong, schema_id=cython.longlong,
    source=Source, root=Node
)
cpdef decode(column, definition, kind, is_written_with)
