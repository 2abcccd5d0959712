// SPDX-License-Identifier: Apache-2.0
// Functions of the C library that fail, fall short, or end the process, at one call that is chosen by its number.
//
// For LD_PRELOAD. While it is armed, the calls below are numbered from 0, in all threads together; those on the
// standard streams are not counted. Nothing is counted in a process that has not armed it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SIGNAL = 1000, SHORT = 2000, NAMES = 1 << 16 };

static _Atomic long count;
static long first, last = -1;
static int what, is_armed;
static const char *names[NAMES];

// `how`: an error number; SIGNAL + a signal; SHORT. It happens at the calls from `from` to `to`.
void fault_arm(long from, long to, int how) {
    first = from, last = to, what = how;
    count = 0;
    is_armed = 1;
}

long fault_disarm(void) {
    is_armed = 0;
    return count;
}

const char *fault_name(long number) { return names[number % NAMES]; }

// What happens at this call: an error number, SHORT, or 0 for nothing.
static int happens(const char *name) {
    if (!is_armed) return 0;
    long number = count++;
    names[number % NAMES] = name;
    if (number < first || number > last) return 0;
    if (what < SIGNAL || what == SHORT) return what;
    kill(getpid(), what - SIGNAL);
    return 0;
}

#define REAL(type, name, parameters) \
    static type(*real) parameters;   \
    if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name)

#define FAILING(type, failed, name, parameters, arguments, is_counted) \
    type name parameters {                                             \
        REAL(type, name, parameters);                                  \
        int how = (is_counted) ? happens(#name) : 0;                   \
        if (how && how != SHORT) {                                     \
            errno = how;                                               \
            return failed;                                             \
        }                                                              \
        return real arguments;                                         \
    }

#define ALWAYS(name, parameters, arguments) FAILING(int, -1, name, parameters, arguments, 1)
#define ON_FILE(type, name, parameters, arguments) FAILING(type, -1, name, parameters, arguments, file > 2)

// Of what is read or written, a short call does the half; nothing is a valid part of no call.
#define MOVING(name, parameters, arguments)            \
    ssize_t name parameters {                          \
        REAL(ssize_t, name, parameters);               \
        int how = file > 2 ? happens(#name) : 0;       \
        if (how == SHORT) size = (size + 1) / 2;       \
        else if (how) {                                \
            errno = how;                               \
            return -1;                                 \
        }                                              \
        return real arguments;                         \
    }

// The same for a list of buffers, of which the first alone is taken.
#define MOVING_LIST(name, parameters, arguments)                                             \
    ssize_t name parameters {                                                                \
        REAL(ssize_t, name, parameters);                                                     \
        int how = file > 2 ? happens(#name) : 0;                                             \
        struct iovec half;                                                                   \
        if (how == SHORT && length) {                                                        \
            half = (struct iovec){list[0].iov_base, (list[0].iov_len + 1) / 2};              \
            list = &half, length = 1;                                                        \
        } else if (how && how != SHORT) {                                                    \
            errno = how;                                                                     \
            return -1;                                                                       \
        }                                                                                    \
        return real arguments;                                                               \
    }

#define OPENING(name, parameters, arguments, given)              \
    int name parameters {                                        \
        REAL(int, name, given);                                  \
        mode_t mode = 0;                                         \
        if (flags & (O_CREAT | O_TMPFILE)) {                     \
            va_list more;                                        \
            va_start(more, flags);                               \
            mode = va_arg(more, mode_t);                         \
            va_end(more);                                        \
        }                                                        \
        int how = happens(#name);                                \
        if (how && how != SHORT) {                               \
            errno = how;                                         \
            return -1;                                           \
        }                                                        \
        return real arguments;                                   \
    }

OPENING(open, (const char *path, int flags, ...), (path, flags, mode), (const char *, int, mode_t))
OPENING(open64, (const char *path, int flags, ...), (path, flags, mode), (const char *, int, mode_t))
OPENING(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), (int, const char *, int, mode_t))
OPENING(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), (int, const char *, int, mode_t))

MOVING(read, (int file, void *data, size_t size), (file, data, size))
MOVING(write, (int file, const void *data, size_t size), (file, data, size))
MOVING(pread64, (int file, void *data, size_t size, off64_t at), (file, data, size, at))
MOVING(pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
MOVING_LIST(readv, (int file, const struct iovec *list, int length), (file, list, length))
MOVING_LIST(writev, (int file, const struct iovec *list, int length), (file, list, length))
MOVING_LIST(preadv64v2, (int file, const struct iovec *list, int length, off64_t at, int flags),
            (file, list, length, at, flags))
MOVING_LIST(pwritev64v2, (int file, const struct iovec *list, int length, off64_t at, int flags),
            (file, list, length, at, flags))

ALWAYS(stat64, (const char *path, struct stat64 *found), (path, found))
ALWAYS(lstat64, (const char *path, struct stat64 *found), (path, found))
ALWAYS(fstatat64, (int at, const char *path, struct stat64 *found, int flags), (at, path, found, flags))
ON_FILE(int, fstat64, (int file, struct stat64 *found), (file, found))
ALWAYS(statvfs64, (const char *path, struct statvfs64 *found), (path, found))
ALWAYS(access, (const char *path, int mode), (path, mode))
ALWAYS(faccessat, (int at, const char *path, int mode, int flags), (at, path, mode, flags))
FAILING(ssize_t, -1, readlink, (const char *path, char *data, size_t size), (path, data, size), 1)
FAILING(ssize_t, -1, readlinkat, (int at, const char *path, char *data, size_t size), (at, path, data, size), 1)

ALWAYS(rename, (const char *from, const char *to), (from, to))
ALWAYS(renameat, (int at, const char *from, int there, const char *to), (at, from, there, to))
ALWAYS(mkdir, (const char *path, mode_t mode), (path, mode))
ALWAYS(mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))
ALWAYS(unlink, (const char *path), (path))
ALWAYS(unlinkat, (int at, const char *path, int flags), (at, path, flags))
ALWAYS(rmdir, (const char *path), (path))
ALWAYS(link, (const char *from, const char *to), (from, to))
ALWAYS(symlink, (const char *from, const char *to), (from, to))
ALWAYS(chmod, (const char *path, mode_t mode), (path, mode))
ALWAYS(fchmodat, (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags))
ON_FILE(int, fchmod, (int file, mode_t mode), (file, mode))
ALWAYS(utimensat, (int at, const char *path, const struct timespec times[2], int flags), (at, path, times, flags))
ON_FILE(int, ftruncate64, (int file, off64_t size), (file, size))
ON_FILE(off64_t, lseek64, (int file, off64_t offset, int whence), (file, offset, whence))
ON_FILE(int, flock, (int file, int how_locked), (file, how_locked))
FAILING(void *, MAP_FAILED, mmap64, (void *at, size_t size, int may, int flags, int file, off64_t offset),
        (at, size, may, flags, file, offset), file > 2)
FAILING(DIR *, NULL, opendir, (const char *path), (path), 1)
FAILING(DIR *, NULL, fdopendir, (int file), (file), 1)
FAILING(struct dirent64 *, NULL, readdir64, (DIR *folder), (folder), 1)

// Nothing is to last here.
int fsync(int file) {
    int how = file > 2 ? happens("fsync") : 0;
    errno = how;
    return how && how != SHORT ? -1 : 0;
}

// A file is closed even where that fails.
int close(int file) {
    REAL(int, close, (int));
    int how = file > 2 ? happens("close") : 0, result = real(file);
    if (how && how != SHORT) {
        errno = how;
        return -1;
    }
    return result;
}
