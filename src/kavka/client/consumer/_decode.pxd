# C types and inner loops of _decode.py, for the compiled form. Names without an entry here are
# ordinary Python objects.
# cython: annotation_typing=False

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset


cdef class ConsumerRecord:
    cdef public object topic, key, value
    cdef public object _headers
    cdef public long long offset, timestamp
    cdef public long partition, timestamp_type, leader_epoch
    cdef public Py_ssize_t serialized_key_size, serialized_value_size


cdef class Columns:
    cdef public Py_ssize_t rows, room, max_size
    cdef public object offsets, timestamps, keys, values
    cdef public bytearray key_data, value_data, key_ends, value_ends, key_flags, value_flags
    cdef public bytearray key_views, value_views
    cdef public bint has_views
    cdef public list buffers, headers, runs, types
    # Used bytes of key_data and value_data, which are longer while they are filled.
    cdef public Py_ssize_t key_used, value_used

    cpdef add_run(self, topic, long partition, long timestamp_type, Py_ssize_t rows)


cdef class Fetched:
    cdef public object topic, data, body, old_records, aborted, aborting, source
    cdef public long partition, epoch, timestamp_type
    cdef public bint check_crcs, exhausted
    cdef public long long next_offset, base_offset, last_offset, base_timestamp, append_time, version
    cdef public Py_ssize_t end, size, batch_end, body_end, pos, remaining, next_aborted
    # The checksum in the header of the open batch.
    cdef public unsigned long crc

    @cython.locals(count=Py_ssize_t, initial_length=Py_ssize_t)
    cpdef Py_ssize_t take(self, list out, Py_ssize_t limit) except -1
    @cython.locals(count=Py_ssize_t, rows=Py_ssize_t)
    cpdef Py_ssize_t take_columns(self, Columns out, Py_ssize_t limit) except -1
    @cython.locals(start=Py_ssize_t, batch_end=Py_ssize_t, magic=long, codec=long, skip=bint)
    cdef bint _open(self) except -1
    cdef Py_ssize_t _take(self, list out, Py_ssize_t limit) except -1
    cdef Py_ssize_t _take_columns(self, Columns out, Py_ssize_t limit) except -1
    cdef _advance(self, Py_ssize_t pos, Py_ssize_t remaining, long long offset, Py_ssize_t size)


cdef extern from *:
    """
    #ifdef _WIN32
    static Py_ssize_t receive_available(int fd, void *buffer, Py_ssize_t size) { return -1; }
    #else
    #include <sys/socket.h>
    static Py_ssize_t receive_available(int fd, void *buffer, Py_ssize_t size) {
        return recv(fd, buffer, (size_t)size, MSG_DONTWAIT);
    }
    #endif
    """
    Py_ssize_t receive_available(int fd, void* buffer, Py_ssize_t size) nogil


cdef inline Py_ssize_t receive_bytes(int fd, object buffer, Py_ssize_t start, Py_ssize_t end) except -1:
    """Receive available bytes, without the GIL, until none is available or the buffer is full."""
    cdef Py_buffer view
    cdef Py_ssize_t size
    cdef Py_ssize_t at = start
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if start < 0 or end > view.len:
            raise ValueError("the buffer has no room")
        with nogil:
            while at < end:
                size = receive_available(fd, <char*>view.buf + at, end - at)
                if size <= 0:
                    break
                at += size
    finally:
        PyBuffer_Release(&view)
    return at - start


cdef inline bytearray new_bytearray(Py_ssize_t size):
    """Unlike `bytearray(size)`, does not zero the memory."""
    return PyByteArray_FromStringAndSize(NULL, size)


cdef inline long long big_endian(const unsigned char* at, int size) noexcept nogil:
    cdef unsigned long long number = 0
    cdef int i
    for i in range(size):
        number = number << 8 | at[i]
    if size < 8 and at[0] > 127:
        return <long long>number - (<long long>1 << 8 * size)
    return <long long>number


cdef inline tuple find_end(object data):
    cdef Py_buffer view
    cdef const unsigned char* at
    cdef Py_ssize_t pos = 0
    cdef long long size
    cdef long long offset = -1
    cdef long long epoch = -1
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while view.len - pos >= 17:
            at = <const unsigned char*>view.buf + pos
            size = 12 + big_endian(at + 8, 4)
            if size < 26 or size > view.len - pos:
                break
            epoch = -1
            if at[16] == 2:
                if size < 61:
                    break
                epoch = big_endian(at + 12, 4)
                offset = big_endian(at, 8) + big_endian(at + 23, 4)
            else:
                offset = big_endian(at, 8)
            pos += size
    finally:
        PyBuffer_Release(&view)
    return (offset + 1 if pos else -1), epoch, pos


cdef inline bint open_plain(Fetched self) except -1:
    """Open the batch at `batch_end` without validating its checksum, and return True. Return False
    for batches that `_open` must handle: batches of another magic, compressed batches, control
    batches, batches without records to return, and batches of producers whose transactions must
    be checked."""
    cdef Py_buffer view
    cdef const unsigned char* at
    cdef Py_ssize_t start = self.batch_end
    cdef long long size, attributes, count, base_offset, last_offset
    if self.end - start < 61:
        return False
    PyObject_GetBuffer(self.data, &view, PyBUF_SIMPLE)
    at = <const unsigned char*>view.buf + start
    PyBuffer_Release(&view)
    size = 12 + big_endian(at + 8, 4)
    attributes = big_endian(at + 21, 2)
    count = big_endian(at + 57, 4)
    base_offset = big_endian(at, 8)
    last_offset = base_offset + big_endian(at + 23, 4)
    if (
        at[16] != 2
        or size < 61
        or size > self.end - start
        or attributes & 0x27
        or count <= 0
        or count * 7 > size - 61
        or last_offset < self.next_offset
        or (self.aborted is not None and big_endian(at + 43, 8) >= 0)
    ):
        return False
    self.crc = <unsigned long>(big_endian(at + 17, 4) & 0xFFFFFFFF)
    self.epoch = big_endian(at + 12, 4)
    self.base_timestamp = big_endian(at + 27, 8)
    self.timestamp_type = (attributes & 8) >> 3
    self.append_time = big_endian(at + 35, 8) if self.timestamp_type else -1
    self.base_offset = base_offset
    self.last_offset = last_offset
    self.remaining = count
    self.old_records = None
    self.body = self.data
    self.pos = start + 61
    self.batch_end = self.body_end = start + size
    return True


cdef inline const unsigned char* fail(str reason) except NULL:
    raise ValueError(reason)


cdef inline const unsigned char* read_varint(
    const unsigned char* at, const unsigned char* end, int bits, long long* value
) except NULL nogil:
    """Read a zigzag varint and return its end. Raises ValueError if the varint has more than
    `bits` bits or extends past `end`."""
    cdef unsigned long long number, byte
    cdef int shift
    if at < end and at[0] < 128:
        number = at[0]
        value[0] = <long long>(number >> 1) ^ -<long long>(number & 1)
        return at + 1
    number = 0
    shift = 0
    while at < end:
        byte = at[0]
        at += 1
        if shift >= bits or (shift == 63 and byte > 1) or (bits == 32 and shift == 28 and byte > 15):
            with gil:
                return fail("a variable-length number is too long")
        number |= (byte & 127) << shift
        if byte < 128:
            value[0] = <long long>(number >> 1) ^ -<long long>(number & 1)
            return at
        shift += 7
    with gil:
        return fail("a batch ends before its last record")


cdef struct Raw:
    # The positions of a record's parts. Lengths are -1 for null; headers start with their count.
    long long offset, timestamp, key_size, value_size
    const unsigned char* key
    const unsigned char* value
    const unsigned char* headers
    const unsigned char* end


cdef inline const unsigned char* read_record(
    const unsigned char* at, const unsigned char* end, long long first, Raw* raw
) except NULL nogil:
    """Parse the record at `at` and return its end. Its offset and timestamp are relative to the
    batch. A record with an offset below `first` is skipped: only `offset`, `timestamp` and `end`
    are set. Raises ValueError if the record is invalid."""
    cdef long long length
    at = read_varint(at, end, 32, &length)
    if length < 0 or length > end - at:
        with gil:
            return fail(f"a record has a length of {length} bytes, but {end - at} bytes remain in the batch")
    end = at + length
    raw.end = end
    at = read_varint(at + 1, end, 64, &raw.timestamp)
    at = read_varint(at, end, 32, &raw.offset)
    if raw.offset < first:
        return end
    at = read_varint(at, end, 32, &raw.key_size)
    raw.key = at
    if raw.key_size > 0:
        if raw.key_size > end - at:
            with gil:
                return fail("a record's fields extend past its end")
        at += raw.key_size
    elif raw.key_size < -1:
        with gil:
            return fail(f"a record's key has the invalid length {raw.key_size}")
    at = read_varint(at, end, 32, &raw.value_size)
    raw.value = at
    if raw.value_size > 0:
        if raw.value_size > end - at:
            with gil:
                return fail("a record's fields extend past its end")
        at += raw.value_size
    elif raw.value_size < -1:
        with gil:
            return fail(f"a record's value has the invalid length {raw.value_size}")
    if at >= end:
        with gil:
            return fail("a record's fields extend past its end")
    raw.headers = NULL if at[0] == 0 and at + 1 == end else at
    return end


cdef inline Py_ssize_t take_records(Fetched self, list out, Py_ssize_t limit) except -1:
    cdef Py_buffer view
    cdef Raw raw
    cdef ConsumerRecord record
    cdef const unsigned char* at
    cdef const unsigned char* end
    cdef Py_ssize_t remaining = self.remaining
    cdef Py_ssize_t count = 0
    cdef long long first = self.next_offset - self.base_offset
    cdef object topic = self.topic
    raw.offset = first - 1
    PyObject_GetBuffer(self.body, &view, PyBUF_SIMPLE)
    try:
        at = <const unsigned char*>view.buf + self.pos
        end = <const unsigned char*>view.buf + self.body_end
        while remaining and count < limit:
            at = read_record(at, end, first, &raw)
            remaining -= 1
            if raw.offset < first:
                continue
            record = ConsumerRecord.__new__(ConsumerRecord)
            record.topic = topic
            record.partition = self.partition
            record.offset = self.base_offset + raw.offset
            record.timestamp = self.base_timestamp + raw.timestamp if self.append_time < 0 else self.append_time
            record.timestamp_type = self.timestamp_type
            record.leader_epoch = self.epoch
            record.serialized_key_size = raw.key_size
            record.serialized_value_size = raw.value_size
            if raw.key_size >= 0:
                record.key = PyBytes_FromStringAndSize(<const char*>raw.key, raw.key_size)
            if raw.value_size >= 0:
                record.value = PyBytes_FromStringAndSize(<const char*>raw.value, raw.value_size)
            if raw.headers != NULL:
                record._headers = PyBytes_FromStringAndSize(<const char*>raw.headers, raw.end - raw.headers)
            out.append(record)
            count += 1
        self._advance(at - <const unsigned char*>view.buf, remaining, self.base_offset + raw.offset, self.body_end)
    finally:
        PyBuffer_Release(&view)
    return count


cdef inline int make_room(Columns out, Py_ssize_t rows, Py_ssize_t keys, Py_ssize_t values) except -1:
    """Ensure room for `rows` more rows and, without views, for `keys` more bytes of keys and
    `values` more bytes of values."""
    cdef Py_ssize_t need = out.rows + rows
    if need > out.room:
        need = max(need, 2 * out.room, 4096)
        PyByteArray_Resize(out.offsets, need * 8)
        PyByteArray_Resize(out.timestamps, need * 8)
        PyByteArray_Resize(out.key_flags, need)
        PyByteArray_Resize(out.value_flags, need)
        if out.has_views:
            PyByteArray_Resize(out.key_views, need * 16)
            PyByteArray_Resize(out.value_views, need * 16)
        else:
            PyByteArray_Resize(out.key_ends, need * 4 + 4)
            PyByteArray_Resize(out.value_ends, need * 4 + 4)
        out.room = need
    if out.has_views:
        return 0
    need = out.key_used + keys
    if need > PyByteArray_GET_SIZE(out.key_data):
        PyByteArray_Resize(out.key_data, max(need, 2 * out.key_used))
    need = out.value_used + values
    if need > PyByteArray_GET_SIZE(out.value_data):
        PyByteArray_Resize(out.value_data, max(need, 2 * out.value_used))
    return 0


cdef struct View:
    # An item of Arrow's binary_view layout. Items of up to 12 bytes are in the view itself, from
    # `prefix` on. For other items, `prefix` has the first 4 bytes.
    int32_t size
    char prefix[4]
    int32_t buffer
    int32_t offset


cdef struct Sinks:
    # The memory of columns. It has enough room and does not move while records are decoded.
    int64_t* offsets
    int64_t* timestamps
    char* key_flags
    char* value_flags
    int32_t* key_ends
    int32_t* value_ends
    char* key_data
    char* value_data
    View* key_views
    View* value_views
    # The number (from 1) and the start of the buffer that new views refer to. 0 without views.
    int32_t buffer
    const unsigned char* buffer_start
    Py_ssize_t row, key_used, value_used


cdef inline Sinks sinks_of(Columns out):
    cdef Sinks sinks
    sinks.offsets = <int64_t*>PyByteArray_AS_STRING(out.offsets)
    sinks.timestamps = <int64_t*>PyByteArray_AS_STRING(out.timestamps)
    sinks.key_flags = PyByteArray_AS_STRING(out.key_flags)
    sinks.value_flags = PyByteArray_AS_STRING(out.value_flags)
    sinks.key_ends = <int32_t*>PyByteArray_AS_STRING(out.key_ends)
    sinks.value_ends = <int32_t*>PyByteArray_AS_STRING(out.value_ends)
    sinks.key_data = PyByteArray_AS_STRING(out.key_data)
    sinks.value_data = PyByteArray_AS_STRING(out.value_data)
    sinks.key_views = <View*>PyByteArray_AS_STRING(out.key_views)
    sinks.value_views = <View*>PyByteArray_AS_STRING(out.value_views)
    sinks.buffer = 0
    sinks.buffer_start = NULL
    sinks.row = out.rows
    sinks.key_used = out.key_used
    sinks.value_used = out.value_used
    return sinks


cdef inline void put_view(
    View* view, const unsigned char* item, Py_ssize_t size, int32_t buffer, const unsigned char* start
) noexcept nogil:
    # Arrow requires zeros after a short item.
    memset(view, 0, sizeof(View))
    if size <= 0:
        return
    view.size = <int32_t>size
    if size <= 12:
        memcpy(<char*>view + 4, item, size)
    else:
        memcpy(view.prefix, item, 4)
        view.buffer = buffer - 1
        view.offset = <int32_t>(item - start)


cdef inline void put_row(
    Sinks* to, long long offset, long long timestamp, const unsigned char* key, Py_ssize_t key_size,
    const unsigned char* value, Py_ssize_t value_size
) noexcept nogil:
    cdef Py_ssize_t row = to.row
    to.offsets[row] = offset
    to.timestamps[row] = timestamp
    to.key_flags[row] = key_size >= 0
    to.value_flags[row] = value_size >= 0
    to.row = row + 1
    if to.buffer:
        put_view(&to.key_views[row], key, key_size, to.buffer, to.buffer_start)
        put_view(&to.value_views[row], value, value_size, to.buffer, to.buffer_start)
        to.key_used += max(key_size, 0)
        to.value_used += max(value_size, 0)
        return
    if key_size > 0:
        memcpy(to.key_data + to.key_used, key, key_size)
        to.key_used += key_size
    if value_size > 0:
        memcpy(to.value_data + to.value_used, value, value_size)
        to.value_used += value_size
    to.key_ends[row + 1] = <int32_t>to.key_used
    to.value_ends[row + 1] = <int32_t>to.value_used


cdef inline int store_sizes(Columns out, Sinks* sinks) except -1:
    out.rows = sinks.row
    out.key_used = sinks.key_used
    out.value_used = sinks.value_used
    return 0


cdef inline int add_row(
    Columns out, long long offset, long long timestamp, bytes key, bytes value, bytes data
) except -1:
    """Add a row. `data` has the key and then the value. It is the last of `out.buffers` if there
    are views."""
    cdef Py_ssize_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
    cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
    cdef const unsigned char* start = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Sinks sinks
    make_room(out, 1, max(key_size, 0), max(value_size, 0))
    sinks = sinks_of(out)
    if out.has_views:
        sinks.buffer = <int32_t>len(out.buffers)
        sinks.buffer_start = start
    put_row(&sinks, offset, timestamp, start, key_size, start + max(key_size, 0), value_size)
    return store_sizes(out, &sinks)


cdef inline int put_headers(Columns out, Py_ssize_t row, Raw* raw) except -1 nogil:
    with gil:
        out.headers.append((row, PyBytes_FromStringAndSize(<const char*>raw.headers, raw.end - raw.headers)))
    return 0


cdef enum:
    # Fewer rows are decoded without releasing the GIL. Copying 32 bytes counts as one row.
    MIN_UNLOCKED_ROWS = 2048


cdef struct Rows:
    # The rows of a batch: the position and the number of the records that were not taken, the
    # values relative to the batch, and the last record.
    const unsigned char* at
    const unsigned char* end
    Py_ssize_t remaining, count
    long long first, base_offset, base_timestamp, append_time
    Raw raw


cdef inline int put_rows(Columns out, Sinks* sinks, Rows* rows, Py_ssize_t limit) except -1 nogil:
    """Add up to `limit` rows."""
    while rows.remaining and rows.count < limit:
        rows.at = read_record(rows.at, rows.end, rows.first, &rows.raw)
        rows.remaining -= 1
        if rows.raw.offset < rows.first:
            continue
        if rows.raw.headers != NULL:
            put_headers(out, sinks.row, &rows.raw)
        put_row(
            sinks, rows.base_offset + rows.raw.offset,
            rows.base_timestamp + rows.raw.timestamp if rows.append_time < 0 else rows.append_time,
            rows.raw.key, rows.raw.key_size, rows.raw.value, rows.raw.value_size,
        )
        rows.count += 1
    return 0


cdef inline Py_ssize_t take_columns(Fetched self, Columns out, Py_ssize_t limit) except -1:
    """Append up to `limit` records of the open batch to `out`; return their number. Releases the
    GIL for a large batch, so that the I/O thread can run. With views, `out` refers to the body of
    the batch afterwards."""
    cdef Py_buffer view
    cdef Rows rows
    cdef Sinks sinks
    cdef Py_ssize_t room = self.body_end - self.pos
    rows.remaining = self.remaining
    rows.count = 0
    rows.base_offset = self.base_offset
    rows.base_timestamp = self.base_timestamp
    rows.append_time = self.append_time
    rows.first = self.next_offset - self.base_offset
    rows.raw.offset = rows.first - 1
    # Room for the whole batch in both columns: the excess is small.
    make_room(out, min(rows.remaining, limit), room, room)
    sinks = sinks_of(out)
    PyObject_GetBuffer(self.body, &view, PyBUF_SIMPLE)
    try:
        rows.at = <const unsigned char*>view.buf + self.pos
        rows.end = <const unsigned char*>view.buf + self.body_end
        if out.has_views:
            if not out.buffers or out.buffers[len(out.buffers) - 1] is not self.body:
                out.buffers.append(self.body)
            sinks.buffer = <int32_t>len(out.buffers)
            sinks.buffer_start = <const unsigned char*>view.buf
        if (rows.remaining if out.has_views else room // 32) < MIN_UNLOCKED_ROWS:
            put_rows(out, &sinks, &rows, limit)
        else:
            with nogil:
                put_rows(out, &sinks, &rows, limit)
        self._advance(
            rows.at - <const unsigned char*>view.buf, rows.remaining, rows.base_offset + rows.raw.offset, self.body_end
        )
    finally:
        PyBuffer_Release(&view)
    store_sizes(out, &sinks)
    return rows.count
