// Lets slurmd see version 2 of control groups alone: of /proc/PID/cgroup it reads the line of version 2 only.
// Slurm refuses to use version 2 where a hierarchy of version 1 exists, even if nothing is mounted from it.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_cgroup_of_a_process(const char *path) {
  size_t length = strlen(path);
  return strncmp(path, "/proc/", 6) == 0 && length > 13 && strcmp(path + length - 7, "/cgroup") == 0;
}

// A file with the line of version 2, in place of `file`, which is closed.
static int unified(int file) {
  char text[16384];
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  int copy = memfd_create("cgroup", 0);
  if (length < 0 || copy < 0) return -1;
  text[length] = 0;
  for (char *line = text; line != NULL && *line != 0;) {
    char *end = strchr(line, '\n');
    size_t size = end ? (size_t)(end - line) + 1 : strlen(line);
    if (strncmp(line, "0::", 3) == 0 && write(copy, line, size) < 0) return -1;
    line = end ? end + 1 : NULL;
  }
  lseek(copy, 0, SEEK_SET);
  return copy;
}

// The third argument exists only if `flags` require it; the real function ignores it otherwise.
#define WRAPPED(name)                                                          \
  int name(const char *path, int flags, ...) {                                 \
    va_list rest;                                                              \
    va_start(rest, flags);                                                     \
    unsigned mode = va_arg(rest, unsigned);                                    \
    va_end(rest);                                                              \
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);             \
    int file = real(path, flags, mode);                                        \
    return file >= 0 && is_cgroup_of_a_process(path) ? unified(file) : file;   \
  }

WRAPPED(open)
WRAPPED(open64)
