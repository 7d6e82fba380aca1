#include "worker/trainer/sleeping_threads.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

namespace coat::trainer {

void use_sleeping_threads(char* const* argv) {
  if (::getenv("OMP_WAIT_POLICY") != nullptr || ::getenv("GOMP_SPINCOUNT") != nullptr) return;
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  if (::setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  ::execv(path,
          argv);  // comes back only where it failed; then threads spin, which is slower and nothing else
}

}  // namespace coat::trainer
