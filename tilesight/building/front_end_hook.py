"""C source of the hook that is preloaded into NVIDIA's front end: it stops where the kernel is opened, and forks for each one.

Whoever wants a kernel compiled connects and sends the folder that it lies in. The copy keeps the connection, which so
closes when it ends, whatever its end; before a good end it says `DONE`. What it wrote lies in the folder.
"""

from __future__ import annotations

DONE = "+"  # what a copy says that has come to its end
BODY = "tilesight_kernel.cu"  # the file of which the hook knows that the headers are read

HOOK = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int asker = -1;

/* In the copy, at its regular end. One that is killed may leave half a file, and says nothing. */
static void tell(int status, void *unused) {
  (void)unused;
  if (!status && write(asker, "DONE", 1) != 1) _exit(1);
}

static int threads(void) {
  int count = 0;
  DIR *tasks = opendir("/proc/self/task");
  if (!tasks) return 1;
  for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

static int same_user(int client) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  return !getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == getuid();
}

/* In the copy: the kernel's folder becomes the working folder, its log the output. */
static void take(int client) {
  char folder[4096];
  size_t length = 0;
  while (length < sizeof folder - 1 && read(client, folder + length, 1) == 1 && folder[length] != '\n') length++;
  folder[length] = 0;
  if (chdir(folder)) _exit(1);
  struct rlimit memory = {1UL << 34, 1UL << 34}, seconds = {600, 600};
  setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CPU, &seconds);
  int log = open("front_end.log", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(open("/dev/null", O_RDONLY), 0);
  dup2(log, 1);
  dup2(log, 2);
  /* when who asked is gone, so is the copy */
  signal(SIGIO, SIG_DFL);
  fcntl(client, F_SETOWN, getpid());
  fcntl(client, F_SETFL, O_ASYNC);
  char byte;
  if (recv(client, &byte, 1, MSG_DONTWAIT) == 0) _exit(1);
  asker = client;
  on_exit(tell, NULL);
}

/* Standard input is a listening socket. Returns in the copies only. */
static void serve(void) {
  if (threads() != 1) _exit(1); /* others would be missing in a copy */
  signal(SIGCHLD, SIG_IGN);
  for (;;) {
    int client = accept(0, NULL, NULL);
    if (client < 0 && errno != EINTR && errno != ECONNABORTED) _exit(1);
    if (client < 0) continue;
    pid_t server = getpid();
    if (same_user(client) && fork() == 0) {
      signal(SIGCHLD, SIG_DFL);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != server) _exit(1);
      take(client);
      return;
    }
    close(client);
  }
}

static FILE *open_after(const char *function, const char *path, const char *mode) {
  FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, function);
  const char *slash = strrchr(path, '/');
  if (!strcmp(slash ? slash + 1 : path, "BODY")) serve();
  return next(path, mode);
}

FILE *fopen(const char *path, const char *mode) { return open_after("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return open_after("fopen64", path, mode); }
""".replace("BODY", BODY).replace("DONE", DONE)
