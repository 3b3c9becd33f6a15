/* The launcher at the front of dist/qwen3-8b: unpacks the program that is appended to it and becomes that program.
 *
 * Owns: finding a folder to unpack into, unpacking, and leaving nothing behind. Refuses to know what the program does.
 * It is linked statically, so that the one file asks nothing of the machine but what the program inside asks (glibc).
 *
 * Life of a start:
 *   1. The payload at the end of this very file is mapped and its index checked.
 *   2. A private folder qwen3-8b.XXXXXX is made in the first temporary folder that is writable and allows programs to
 * be run (a `noexec` mount does not). A lock on its file .lock lives as long as the program does.
 *   3. A cleaner process is forked. Threads unpack chunks; each is a raw DEFLATE stream with a checksum.
 *   4. This process *becomes* the program by execve: one process id for signals, supervisors and kill -9, and no parent
 *      that could die alone.
 *   5. When the program is gone, however it went, the kernel tells the cleaner, which removes the folder. Folders whose
 *      cleaner was killed too are found by their free lock and removed at a later start.
 *
 * Layout of the file: this ELF | chunks | index | trailer. All numbers are little-endian (x86-64 and aarch64 are).
 *   index   : n_files x {u32 mode, u32 n_chunks, u64 size, u16 path_length, path}, each followed by its chunks'
 *             n_chunks x {u64 offset in this file, u32 compressed size, u32 size, u32 adler32 of the content}
 *             A mode with the link bits has the link's target as its one stored chunk.
 *   trailer : u64 index offset, u64 index size, u32 n_files, u32 adler32 of the index, 8 bytes magic
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "inflate.h"

#define MAGIC "QWEN3PK1"
#define PREFIX "qwen3-8b."
#define PROGRAM "qwen3-8b"

enum {
  kTrailerSize = 32,
  kMaxThreads = 4,        /* more gain nothing: unpacking is then bound by the page cache */
  kMaxChunk = 8 << 20,    /* larger ones are not written by pack.py, so the file is damaged */
  kStaleSeconds = 60 * 60 /* a folder without lock this old was left by a start that died early */
};

static const char* g_folder; /* set once it exists: removed when unpacking fails */

static void remove_tree(int parent, const char* name);

static _Noreturn void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs(PROGRAM ": ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  if (g_folder != NULL) remove_tree(AT_FDCWD, g_folder);
  exit(1);
}

static _Noreturn void fail_damaged(void) {
  fail("this file is damaged; download or build it again");
}

/* ------------------------------------------------------------------------------------------------------- the payload
 */

typedef struct {
  const uint8_t* bytes; /* this whole file, mapped */
  size_t size;
} Image;

typedef struct {
  const char* path; /* relative to the folder, not terminated in the index, so copied */
  uint32_t mode;
  uint64_t size;
  int fd; /* open while unpacking */
} File;

typedef struct {
  uint64_t offset;
  uint32_t compressed, size, checksum;
  uint32_t file;
  uint64_t position; /* in the file */
} Chunk;

typedef struct {
  Image image;
  File* files;
  uint32_t n_files;
  Chunk* chunks;
  uint32_t n_chunks;
  int folder; /* directory descriptor */
  atomic_uint next;
  atomic_int error; /* an errno, or -1 for damaged data */
} Unpacking;

static uint32_t adler32(const uint8_t* data, size_t size) {
  uint32_t a = 1, b = 0;
  while (size > 0) {
    const size_t block = size < 5552 ? size : 5552; /* the most that cannot overflow 32 bits */
    for (size_t i = 0; i < block; i++) {
      a += data[i];
      b += a;
    }
    a %= 65521;
    b %= 65521;
    data += block;
    size -= block;
  }
  return b << 16 | a;
}

static uint64_t read_number(const uint8_t** cursor, const uint8_t* end, unsigned n_bytes) {
  if ((size_t)(end - *cursor) < n_bytes) fail_damaged();
  uint64_t value = 0;
  for (unsigned i = 0; i < n_bytes; i++) value |= (uint64_t)(*cursor)[i] << (8 * i);
  *cursor += n_bytes;
  return value;
}

static void* allocate(size_t n, size_t size) {
  void* memory = calloc(n > 0 ? n : 1, size);
  if (memory == NULL) fail("out of memory while unpacking; free some and try again");
  return memory;
}

/* Own path: the kernel's word first, the name it was started by where /proc is not mounted. */
static const char* own_path(void) {
  static char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    return path;
  }
  const char* started_as = (const char*)getauxval(AT_EXECFN); /* NOLINT: the kernel passes a pointer as a number */
  if (started_as == NULL || realpath(started_as, path) == NULL)
    fail("cannot find its own file; mount /proc or start it by its full path");
  return path;
}

static Image map_self(void) {
  const char* path = own_path();
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0) fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0)
    fail("cannot read its own file %s: %s; make it readable", path, strerror(errno));
  Image image = {NULL, (size_t)status.st_size};
  if (image.size <= kTrailerSize) fail_damaged();
  void* mapped = mmap(NULL, image.size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) fail("cannot map its own file %s: %s", path, strerror(errno));
  close(fd);
  image.bytes = mapped;
  return image;
}

/* A path of the index is below the folder: relative, without "..". */
static bool is_plain_path(const char* path) {
  if (path[0] == 0 || path[0] == '/') return false;
  for (const char* part = path; part != NULL; part = strchr(part, '/')) {
    if (*part == '/') part++;
    if (strcmp(part, "..") == 0 || strncmp(part, "../", 3) == 0) return false;
  }
  return true;
}

static void read_index(Unpacking* work) {
  const Image image = work->image;
  const uint8_t* cursor = image.bytes + image.size - kTrailerSize;
  const uint8_t* end = image.bytes + image.size;
  if (memcmp(end - 8, MAGIC, 8) != 0) {
    fail(
        "the program that belongs behind this launcher is missing (was the file stripped?); download or build it "
        "again");
  }
  const uint64_t offset = read_number(&cursor, end, 8), size = read_number(&cursor, end, 8);
  work->n_files = (uint32_t)read_number(&cursor, end, 4);
  const uint32_t checksum = (uint32_t)read_number(&cursor, end, 4);
  if (offset > image.size || size > image.size - offset || work->n_files > size) fail_damaged();
  cursor = image.bytes + offset;
  end = cursor + size;
  if (adler32(cursor, size) != checksum) fail_damaged();

  work->files = allocate(work->n_files, sizeof(File));
  work->chunks = allocate(size / 20 + 1, sizeof(Chunk)); /* a chunk takes 20 bytes of the index */
  for (uint32_t i = 0; i < work->n_files; i++) {
    File* file = &work->files[i];
    file->mode = (uint32_t)read_number(&cursor, end, 4);
    const uint32_t n_chunks = (uint32_t)read_number(&cursor, end, 4);
    file->size = read_number(&cursor, end, 8);
    const size_t length = read_number(&cursor, end, 2);
    if ((size_t)(end - cursor) < length || length >= PATH_MAX) fail_damaged();
    char* path = allocate(length + 1, 1);
    memcpy(path, cursor, length);
    cursor += length;
    if (!is_plain_path(path)) fail_damaged();
    file->path = path;
    uint64_t position = 0;
    for (uint32_t j = 0; j < n_chunks; j++) {
      Chunk chunk = {0};
      chunk.offset = read_number(&cursor, end, 8);
      chunk.compressed = (uint32_t)read_number(&cursor, end, 4);
      chunk.size = (uint32_t)read_number(&cursor, end, 4);
      chunk.checksum = (uint32_t)read_number(&cursor, end, 4);
      chunk.file = i;
      chunk.position = position;
      position += chunk.size;
      if (chunk.offset > image.size || chunk.compressed > image.size - chunk.offset || chunk.size > kMaxChunk)
        fail_damaged();
      work->chunks[work->n_chunks++] = chunk;
    }
    if (position != file->size) fail_damaged();
  }
}

/* --------------------------------------------------------------------------------------------------------- unpacking
 */

static void make_parents(int folder, const char* path) {
  char part[PATH_MAX];
  for (const char* slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    memcpy(part, path, (size_t)(slash - path));
    part[slash - path] = 0;
    if (mkdirat(folder, part, 0700) != 0 && errno != EEXIST) {
      fail("cannot unpack into %s: %s; set TMPDIR to a folder with room", g_folder, strerror(errno));
    }
  }
}

/* Decodes chunk into buffer [chunk.size]. False: damaged. */
static bool decode_chunk(const Unpacking* work, const Chunk* chunk, uint8_t* buffer) {
  const uint8_t* in = work->image.bytes + chunk->offset;
  if (chunk->compressed == chunk->size) { /* stored: what does not shrink is not compressed */
    memcpy(buffer, in, chunk->size);
  } else if (inflate_chunk(in, chunk->compressed, buffer, chunk->size) != 0) {
    return false;
  }
  return adler32(buffer, chunk->size) == chunk->checksum;
}

static void* unpack_chunks(void* argument) {
  Unpacking* work = argument;
  uint8_t* buffer = malloc(kMaxChunk);
  if (buffer == NULL) atomic_store(&work->error, ENOMEM);
  while (atomic_load(&work->error) == 0) {
    const unsigned index = atomic_fetch_add(&work->next, 1);
    if (index >= work->n_chunks) break;
    const Chunk* chunk = &work->chunks[index];
    const File* file = &work->files[chunk->file];
    if (S_ISLNK(file->mode)) continue;
    if (!decode_chunk(work, chunk, buffer)) {
      atomic_store(&work->error, -1);
      break;
    }
    for (size_t done = 0; done < chunk->size;) {
      const ssize_t n = pwrite(file->fd, buffer + done, chunk->size - done, (off_t)(chunk->position + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        atomic_store(&work->error, n < 0 ? errno : EIO);
        break;
      }
      done += (size_t)n;
    }
  }
  free(buffer);
  return NULL;
}

static void unpack(Unpacking* work) {
  uint32_t first_chunk = 0;
  for (uint32_t i = 0; i < work->n_files; i++) {
    File* file = &work->files[i];
    make_parents(work->folder, file->path);
    if (S_ISLNK(file->mode)) {
      char target[PATH_MAX] = {0};
      const Chunk* chunk = &work->chunks[first_chunk];
      if (file->size == 0 || file->size >= sizeof target || chunk->size != file->size ||
          !decode_chunk(work, chunk, (uint8_t*)target) || !is_plain_path(target)) {
        fail_damaged();
      }
      if (symlinkat(target, work->folder, file->path) != 0)
        fail("cannot unpack into %s: %s", g_folder, strerror(errno));
    } else {
      file->fd =
          openat(work->folder, file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, file->mode & 0700);
      if (file->fd < 0) {
        fail("cannot unpack into %s: %s; set TMPDIR to a folder with room", g_folder, strerror(errno));
      }
    }
    while (first_chunk < work->n_chunks && work->chunks[first_chunk].file == i) first_chunk++;
  }
  pthread_t threads[kMaxThreads];
  const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
  int n_threads = 0;
  while (n_threads < kMaxThreads - 1 && n_threads < n_cores - 1) {
    if (pthread_create(&threads[n_threads], NULL, unpack_chunks, work) != 0) break;
    n_threads++;
  }
  unpack_chunks(work);
  for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
  /* Closed before the program starts: a program that is still open for writing cannot be run. */
  for (uint32_t i = 0; i < work->n_files; i++) {
    if (!S_ISLNK(work->files[i].mode)) close(work->files[i].fd);
  }
  const int error = atomic_load(&work->error);
  if (error == -1) fail_damaged();
  if (error != 0) fail("cannot unpack into %s: %s; set TMPDIR to a folder with room", g_folder, strerror(error));
}

/* --------------------------------------------------------------------------------------------------------- the folder
 */

/* Removes name below the directory descriptor parent, whatever it is. Follows no links. Errors are passed over: what
 * cannot be removed now is tried again at a later start. */
static void remove_tree(int parent, const char* name) {
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    unlinkat(parent, name, 0);
    return;
  }
  DIR* directory = fdopendir(fd);
  if (directory == NULL) {
    close(fd);
    return;
  }
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    remove_tree(dirfd(directory), entry->d_name);
  }
  closedir(directory);
  unlinkat(parent, name, AT_REMOVEDIR);
}

/* Removes folders of this user in base that no living program holds the lock of. */
static void remove_stale(const char* base) {
  DIR* directory = opendir(base);
  if (directory == NULL) return;
  const int parent = dirfd(directory);
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0 || strlen(entry->d_name) != sizeof PREFIX - 1 + 6)
      continue;
    struct stat status;
    if (fstatat(parent, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != geteuid())
      continue;
    char lock[NAME_MAX + 8];
    snprintf(lock, sizeof lock, "%s/.lock", entry->d_name);
    const int fd = openat(parent, lock, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const bool stale = fd >= 0 ? flock(fd, LOCK_EX | LOCK_NB) == 0 : time(NULL) - status.st_mtime > kStaleSeconds;
    if (stale) remove_tree(parent, entry->d_name);
    if (fd >= 0) close(fd);
  }
  closedir(directory);
}

/* The first usable temporary folder, in which a private folder is made and entered as g_folder. */
static const char* make_folder(void) {
  const char* bases[] = {getenv("TMPDIR"), "/tmp", "/var/tmp", getenv("XDG_RUNTIME_DIR"), getenv("HOME"), "/dev/shm"};
  static char path[PATH_MAX], base[PATH_MAX];
  char tried[1024] = "";
  for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
    if (bases[i] == NULL || bases[i][0] == 0) continue;
    /* Absolute, because the program may change its working folder. */
    if (realpath(bases[i], base) == NULL) {
      snprintf(base, sizeof base, "%s", bases[i]);
    }
    struct statvfs mount;
    const char* reason = NULL;
    if (statvfs(base, &mount) != 0) {
      reason = strerror(errno);
    } else if ((mount.f_flag & ST_NOEXEC) != 0) {
      reason = "mounted noexec";
    } else if (strlen(base) + 64 > sizeof path) {
      reason = "path too long";
    } else {
      snprintf(path, sizeof path, "%.*s/%sXXXXXX", PATH_MAX - 64, base, PREFIX);
      if (mkdtemp(path) != NULL) {
        g_folder = path;
        if (i > 0 && tried[0] != 0 && bases[0] != NULL) {
          fprintf(stderr, PROGRAM ": TMPDIR cannot be used, tried %s; unpacking into %s\n", tried, base);
        }
        return base;
      }
      reason = strerror(errno);
    }
    const size_t used = strlen(tried);
    snprintf(tried + used, sizeof tried - used, "%s%s (%s)", used > 0 ? ", " : "", base, reason);
  }
  fail(
      "no temporary folder is writable and allows programs to be run, tried %s; set TMPDIR to one that is not mounted "
      "noexec",
      tried);
}

/* The lock file exists only once it is locked, so that nobody takes a new folder for a stale one. Stays open. */
static void take_lock(int folder) {
  const int fd = openat(folder, ".lock.new", O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || renameat(folder, ".lock.new", folder, ".lock") != 0) {
    fail("cannot lock %s: %s; set TMPDIR to a local folder", g_folder, strerror(errno));
  }
}

/* Runs in the forked process: waits for the program's end and removes its folder. Holds nothing of the program's. */
static _Noreturn void clean_up_after(pid_t program, const char* base) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL); /* Ctrl-C and hang-ups are for the program */
  prctl(PR_SET_NAME, "qwen3-8b-clean");
  prctl(PR_SET_PDEATHSIG, SIGUSR1); /* the kernel's message that the program ended, by whatever way */
  setsid();
  /* A reader of the program's output must not wait for this process, and the lock is the program's alone. */
  if (close_range(0, ~0U, 0) != 0) {
    for (int fd = 0; fd < 1024; fd++) close(fd);
  }
  if (chdir("/") != 0) { /* stays where it is: costs nothing but a busy mount */
  }
  remove_stale(base);
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGUSR1);
  /* The signal is blocked, so one that came before this line is still there; anybody else's changes nothing. */
  while (getppid() == program) sigwaitinfo(&ended, NULL);
  remove_tree(AT_FDCWD, g_folder);
  _exit(0);
}

/* -------------------------------------------------------------------------------------------------------------- start
 */

int main(int argc, char** argv) {
  (void)argc;
  static Unpacking work;
  work.image = map_self();
  read_index(&work);
  const char* base = make_folder();
  work.folder = open(g_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (work.folder < 0) fail("cannot open %s: %s", g_folder, strerror(errno));
  take_lock(work.folder);
  const pid_t self = getpid();
  const pid_t cleaner = fork(); /* -1: the program runs all the same, the next start removes the folder */
  if (cleaner == 0) clean_up_after(self, base);
  unpack(&work);

  char program[PATH_MAX + 16], libraries[PATH_MAX * 2];
  snprintf(program, sizeof program, "%s/%s", g_folder, PROGRAM);
  /* The program's own libraries first; PyInstaller's loader links libz before it can set this itself. */
  const char* before = getenv("LD_LIBRARY_PATH");
  const bool has_before = before != NULL && before[0] != 0;
  snprintf(libraries, sizeof libraries, "%s/_internal%s%s", g_folder, has_before ? ":" : "", has_before ? before : "");
  setenv("LD_LIBRARY_PATH", libraries, 1);
  /* Where /proc is missing the program finds its files by its name. */
  if (access("/proc/self/exe", F_OK) != 0) argv[0] = program;
  execv(program, argv);
  const int error = errno;
  fail(error == EACCES ? "cannot run %s: %s; set TMPDIR to a folder that is not mounted noexec"
                       : "cannot run %s: %s; it needs a 64-bit Linux with glibc",
       program, strerror(error));
}
