# C types of the compiled form of _append.py. Names without an entry are ordinary Python objects.
# cython: annotation_typing=False

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy


cdef inline Py_ssize_t varint_size(unsigned long long number) noexcept:
    cdef Py_ssize_t size = 1
    while number > 127:
        number >>= 7
        size += 1
    return size


cdef inline unsigned char* write_varint(unsigned char* at, unsigned long long number) noexcept:
    while number > 127:
        at[0] = (number & 127) | 128
        at += 1
        number >>= 7
    at[0] = <unsigned char>number
    return at + 1


cdef inline unsigned long long zigzag(long long number) noexcept:
    return (<unsigned long long>number << 1) ^ <unsigned long long>(number >> 63)


cdef inline unsigned char* write_field(unsigned char* at, object field, Py_ssize_t size) except NULL:
    cdef Py_buffer view
    if size < 0:
        at[0] = 1
        return at + 1
    at = write_varint(at, <unsigned long long>size << 1)
    if isinstance(field, bytes):
        memcpy(at, PyBytes_AS_STRING(field), size)
    else:
        PyObject_GetBuffer(field, &view, PyBUF_SIMPLE)
        try:
            if view.len != size:
                raise ValueError("a key or value must be a buffer of bytes")
            memcpy(at, view.buf, size)
        finally:
            PyBuffer_Release(&view)
    return at + size


cdef inline Py_ssize_t write_record(
    bytearray body, Py_ssize_t size, long long delta, long long index, object key, object value, bytes headers
) except -1:
    """Write a record at the position `size`. Returns the position of its end. Raises ValueError if
    the body has no room."""
    cdef Py_ssize_t key_size = -1 if key is None else len(key)
    cdef Py_ssize_t value_size = -1 if value is None else len(value)
    cdef Py_ssize_t headers_size = PyBytes_GET_SIZE(headers)
    cdef Py_ssize_t length = 1 + varint_size(zigzag(delta)) + varint_size(zigzag(index)) + headers_size
    length += 1 if key_size < 0 else varint_size(<unsigned long long>key_size << 1) + key_size
    length += 1 if value_size < 0 else varint_size(<unsigned long long>value_size << 1) + value_size
    cdef Py_ssize_t end = size + varint_size(<unsigned long long>length << 1) + length
    if end > PyByteArray_GET_SIZE(body):
        raise ValueError("no room for the record")
    cdef unsigned char* at = <unsigned char*>PyByteArray_AS_STRING(body) + size
    at = write_varint(at, <unsigned long long>length << 1)
    at[0] = 0
    at = write_varint(at + 1, zigzag(delta))
    at = write_varint(at, zigzag(index))
    at = write_field(at, key, key_size)
    at = write_field(at, value, value_size)
    memcpy(at, PyBytes_AS_STRING(headers), headers_size)
    return end


cdef inline int copy_bytes(bytearray to, bytearray source, Py_ssize_t size) except -1:
    if size > PyByteArray_GET_SIZE(to) or size > PyByteArray_GET_SIZE(source):
        raise ValueError("no room for the copy")
    memcpy(PyByteArray_AS_STRING(to), PyByteArray_AS_STRING(source), size)
    return 0


cdef inline const unsigned char* read_number(
    const unsigned char* at, const unsigned char* end, long long* value
) except NULL:
    """Read a zigzag varint and return its end. Raises ValueError if the varint extends past `end` or
    is too long."""
    cdef unsigned long long number = 0
    cdef unsigned long long byte
    cdef int shift = 0
    while at < end and shift < 70:
        byte = at[0]
        at += 1
        number |= (byte & 127) << shift if shift < 64 else 0
        if byte < 128:
            value[0] = <long long>(number >> 1) ^ -<long long>(number & 1)
            return at
        shift += 7
    raise ValueError("the batch ends before its last record")


cdef inline Py_ssize_t write_records(
    Batch batch, object source, long long count, long long base_offset, long long first, long long end,
    long long base_timestamp, long long append_time
) except -1:
    cdef Py_buffer view
    cdef const unsigned char* at
    cdef const unsigned char* limit
    cdef const unsigned char* stop
    cdef unsigned char* start = <unsigned char*>PyByteArray_AS_STRING(batch.body)
    cdef unsigned char* to = start + batch.size
    cdef unsigned char* room = start + PyByteArray_GET_SIZE(batch.body)
    cdef long long length, delta, offset, timestamp
    cdef long long base = batch.base_timestamp
    cdef long long newest = batch.max_timestamp
    cdef long index = batch.count
    cdef Py_ssize_t copied
    PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)
    try:
        at = <const unsigned char*>view.buf
        limit = at + view.len
        while count > 0:
            count -= 1
            at = read_number(at, limit, &length)
            if length < 0 or length > limit - at:
                raise ValueError(f"a record has a length of {length} bytes, but {limit - at} bytes remain in the batch")
            stop = at + length
            at = read_number(at + 1, stop, &delta)
            at = read_number(at, stop, &offset)
            offset += base_offset
            if offset < first:
                at = stop
                continue
            if offset >= end:
                break
            timestamp = base_timestamp + delta if append_time < 0 else append_time
            if index == 0:
                base = timestamp
            if timestamp > newest:
                newest = timestamp
            delta = timestamp - base
            length = 1 + varint_size(zigzag(delta)) + varint_size(zigzag(index)) + (stop - at)
            if length + 10 > room - to:
                raise ValueError("no room for the records")
            to = write_varint(to, <unsigned long long>length << 1)
            to[0] = 0
            to = write_varint(to + 1, zigzag(delta))
            to = write_varint(to, zigzag(index))
            memcpy(to, at, stop - at)
            to += stop - at
            at = stop
            index += 1
    finally:
        PyBuffer_Release(&view)
    copied = index - batch.count
    batch.size = to - start
    batch.count = index
    batch.base_timestamp = base
    batch.max_timestamp = newest
    return copied


cdef class BufferPool:
    cdef public list classes
    cdef public Py_ssize_t cached, limit

    @cython.locals(index=Py_ssize_t, room=Py_ssize_t)
    cpdef Py_ssize_t capacity(self, Py_ssize_t size)
    @cython.locals(index=Py_ssize_t, room=Py_ssize_t)
    cpdef bytearray take(self, Py_ssize_t size)
    @cython.locals(index=Py_ssize_t, size=Py_ssize_t)
    cpdef trim(self, Py_ssize_t excess)
    @cython.locals(index=Py_ssize_t, room=Py_ssize_t, size=Py_ssize_t)
    cpdef put(self, bytearray buffer)


cdef class Batch:
    cdef public PartitionQueue queue
    cdef public bytearray body
    cdef public Py_ssize_t size, charged
    cdef public long long number, base_timestamp, max_timestamp, producer_id, base_offset, log_append_time
    cdef public long count, first, attempts, producer_epoch, base_sequence, codec, reported_failures
    cdef public double created
    cdef public bint in_flight, done
    cdef public object data, encoded_identity, error, record_errors, entries, waiters, parts

    @cython.locals(index=long, delta=longlong, start=Py_ssize_t)
    cpdef Py_ssize_t append(self, long long timestamp, key, value, bytes headers) except -1
    cpdef Py_ssize_t append_records(
        self, body, long long count, long long base_offset, long long first, long long end, long long base_timestamp,
        long long append_time
    ) except -1
    cpdef bint add_waiter(self, waiter) except -1


cdef class RecordFuture:
    cdef public Batch batch
    cdef public long index
    cdef public long long timestamp
    cdef public Py_ssize_t key_size, value_size

    cpdef Batch _current_batch(self)
    cpdef metadata(self)
    cpdef _error(self)


@cython.locals(i=Py_ssize_t, count=Py_ssize_t, future=RecordFuture, batch=Batch)
cpdef call_back(list entries, on_error)


cdef class PartitionQueue:
    cdef public Accumulator owner
    cdef public object topic, batches, level, in_flight
    cdef public Batch tail
    cdef public Py_ssize_t last_batch_size, target
    cdef public long partition, in_transaction, leader, codec, next_sequence, last_acked_sequence, producer_epoch
    cdef public long long last_acked_offset, producer_id
    cdef public double retry_at
    cdef public bint unresolved


cdef class TopicQueues:
    cdef public object name, available
    cdef public list queues
    cdef public long count, sticky
    cdef public Py_ssize_t sticky_bytes


cdef class Accumulator:
    cdef public object lock, wake, choose, loop_thread, unreported_failures
    cdef public Py_ssize_t batch_size, grow_to, buffer_limit, max_record, used
    cdef public long long max_count, record_limit, records, releases, next_number
    cdef public long flushing, transaction
    cdef public bint awake, closed
    cdef public dict pending, incomplete, topics
    cdef public list room_waiters
    cdef public BufferPool pool

    @cython.locals(key_size=Py_ssize_t, value_size=Py_ssize_t, estimate=Py_ssize_t, index=long,
                   wake=bint, batch=Batch)
    cpdef append(
        self, PartitionQueue queue, long transaction, long long timestamp, key, value, bytes headers, callback
    )
    @cython.locals(room=Py_ssize_t)
    cdef Batch _next_batch(self, PartitionQueue queue, Batch batch, Py_ssize_t estimate)
    cpdef Batch new_batch(self, PartitionQueue queue, Py_ssize_t room, bint force)
    @cython.locals(is_only_batch=bint, used=Py_ssize_t, available=Py_ssize_t, room=Py_ssize_t)
    cdef bytearray _allocate(self, Py_ssize_t size, Py_ssize_t charged, bint force)
    @cython.locals(filled=Py_ssize_t)
    cpdef bint make_room(self, Batch batch, Py_ssize_t size, bint force) except -1


cdef class SendPath:
    cdef public Accumulator _accumulator
    cdef public bint _accepts_text_keys, _accepts_text_values, _ignore_keys

    @cython.locals(size=Py_ssize_t, is_sticky=bint, index=long, now=longlong, accumulator=Accumulator,
                   queue=PartitionQueue)
    cdef _try_fast_path(self, TopicQueues queues, long transaction, value, key, partition, timestamp, callback)


@cython.locals(length=Py_ssize_t, aligned=Py_ssize_t, i=Py_ssize_t, tail=Py_ssize_t, mask=ulonglong, m=ulonglong,
               h=ulonglong, k=ulonglong)
cpdef unsigned long long murmur2(bytes data)
