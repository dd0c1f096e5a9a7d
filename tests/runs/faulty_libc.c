/* A C library for LD_PRELOAD. It counts the calls that concern files below one directory; the n-th of them fails, kills
   or suspends the process. CPython on Linux with glibc touches files through these functions only. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 4096

enum { FAIL, KILL_BEFORE, KILL_AFTER, STOP };

static char directory[PATH_MAX]; /* empty: count nothing */
static int action, number, only_changes, report;
static long nth;
static atomic_long calls;
static char is_open[MAX_FILES]; /* by file descriptor: whether its file is below the directory */

/* Watch the files below a directory from now on. `n`: the call to disturb, from 1; 0 for none. `error`: the errno of
   FAIL. `changes`: count only calls that may change files. `descriptor`: where to write the name of the n-th call. */
void arm(const char *below, long n, int what, int error, int changes, int descriptor) {
    calls = 0;
    nth = n, action = what, number = error, only_changes = changes, report = descriptor;
    strncpy(directory, below, sizeof directory - 1);
}

long count(void) { return calls; }

static int below(const char *path) {
    size_t length = strlen(directory);
    return length && path && !strncmp(path, directory, length);
}

static int opened(int file) { return file >= 0 && file < MAX_FILES && is_open[file]; }

/* Count a call. Returns the action if it is the n-th, else -1. */
static int next(const char *name, const char *path, int file, int changes) {
    char of_file[PATH_MAX] = "", link[64];
    if ((only_changes && !changes) || ++calls != nth)
        return -1;
    if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        if (readlink(link, of_file, sizeof of_file - 1) > 0)
            path = of_file;
    }
    dprintf(report, "at %s %s\n", name, path ? path : "?");
    if (action == KILL_BEFORE)
        raise(SIGKILL);
    if (action == STOP)
        raise(SIGSTOP);
    return action;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* A function that makes the call `name arguments` unless the action prevents it. */
#define WATCH(type, failure, name, parameters, arguments, is_watched, path, file, changes)                             \
    type name parameters {                                                                                             \
        int now = (is_watched) ? next(#name, path, file, changes) : -1;                                                \
        if (now == FAIL)                                                                                               \
            return errno = number, failure;                                                                            \
        type result = REAL(name) arguments;                                                                            \
        if (now == KILL_AFTER)                                                                                         \
            raise(SIGKILL);                                                                                            \
        return result;                                                                                                 \
    }
#define PATH(name, changes, parameters, arguments)                                                                     \
    WATCH(int, -1, name, parameters, arguments, below(path), path, -1, changes)
#define FILE_(type, name, changes, parameters, arguments)                                                              \
    WATCH(type, -1, name, parameters, arguments, opened(file), NULL, file, changes)

PATH(stat64, 0, (const char *path, struct stat64 *status), (path, status))
PATH(lstat64, 0, (const char *path, struct stat64 *status), (path, status))
PATH(fstatat64, 0, (int at, const char *path, struct stat64 *status, int flags), (at, path, status, flags))
PATH(access, 0, (const char *path, int mode), (path, mode))
PATH(mkdir, 1, (const char *path, mode_t mode), (path, mode))
PATH(rmdir, 1, (const char *path), (path))
PATH(unlink, 1, (const char *path), (path))
PATH(unlinkat, 1, (int at, const char *path, int flags), (at, path, flags))
PATH(rename, 1, (const char *path, const char *to), (path, to))
PATH(renameat, 1, (int at, const char *path, int at_to, const char *to), (at, path, at_to, to))
PATH(link, 1, (const char *path, const char *to), (path, to))
PATH(linkat, 1, (int at, const char *path, int at_to, const char *to, int flags), (at, path, at_to, to, flags))
PATH(utimensat, 1, (int at, const char *path, const struct timespec times[2], int flags), (at, path, times, flags))
FILE_(int, fstat64, 0, (int file, struct stat64 *status), (file, status))
FILE_(int, fsync, 1, (int file), (file))
FILE_(int, fdatasync, 1, (int file), (file))
FILE_(int, ftruncate64, 1, (int file, off64_t length), (file, length))
FILE_(ssize_t, read, 0, (int file, void *bytes, size_t size), (file, bytes, size))
FILE_(ssize_t, pread64, 0, (int file, void *bytes, size_t size, off64_t offset), (file, bytes, size, offset))

/* KILL_AFTER leaves half of a write. */
ssize_t write(int file, const void *bytes, size_t size) {
    int now = opened(file) ? next("write", NULL, file, 1) : -1;
    if (now == FAIL)
        return errno = number, -1;
    ssize_t written = REAL(write)(file, bytes, now == KILL_AFTER ? size / 2 : size);
    if (now == KILL_AFTER)
        raise(SIGKILL);
    return written;
}

static int remember(int file, int is_watched) {
    if (file >= 0 && file < MAX_FILES)
        is_open[file] = is_watched;
    return file;
}

#define OPEN(name, parameters, arguments)                                                                              \
    int name parameters {                                                                                              \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        int now = below(path) ? next(#name, path, -1, flags & (O_CREAT | O_TRUNC)) : -1;                               \
        if (now == FAIL)                                                                                               \
            return errno = number, -1;                                                                                 \
        int file = remember(REAL(name) arguments, below(path));                                                        \
        if (now == KILL_AFTER)                                                                                         \
            raise(SIGKILL);                                                                                            \
        return file;                                                                                                   \
    }
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

/* Linux closes the file even if it reports an error. */
int close(int file) {
    int now = opened(file) ? next("close", NULL, file, 0) : -1;
    int result = REAL(close)(remember(file, 0));
    if (now == FAIL)
        return errno = number, -1;
    return result;
}

DIR *opendir(const char *path) {
    if (below(path) && next("opendir", path, -1, 0) == FAIL)
        return errno = number, NULL;
    DIR *stream = REAL(opendir)(path);
    if (stream)
        remember(dirfd(stream), below(path));
    return stream;
}

WATCH(struct dirent64 *, NULL, readdir64, (DIR * stream), (stream), opened(dirfd(stream)), NULL, dirfd(stream), 0)

int closedir(DIR *stream) {
    remember(dirfd(stream), 0);
    return REAL(closedir)(stream);
}
