/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit for one input in CPU time. libFuzzer's own -timeout is by the clock on the wall, which
 * goes on while other programs have the CPU: an input of 0.2 s has exceeded 5 s on a busy machine.
 */
#pragma once
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { CPU_SECONDS = 5 };

static void cpu_limit_reached(int number) {
  static const char message[] = "one input took more than its CPU time\n";
  (void)number;
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
    _exit(1);
  abort(); /* libFuzzer writes the input to a file then */
}

/* To be called as an input begins: it has CPU_SECONDS of CPU time from now on. */
static inline void limit_cpu_time(void) {
  static int armed;
  struct itimerval limit = {.it_value = {.tv_sec = CPU_SECONDS}};
  if (!armed) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = cpu_limit_reached;
    sigaction(SIGPROF, &action, NULL);
    armed = 1;
  }
  setitimer(ITIMER_PROF, &limit, NULL);
}
