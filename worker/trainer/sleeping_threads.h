// How the threads of the CPU kernels wait for each other.
#pragma once

namespace coat::trainer {

// Threads that wait at the end of a parallel loop sleep instead of spinning. A trainer shares its machine
// with daemons and other trainers, where spinning threads take the cores from those that have work: on two
// cores with a load of ten, a step takes five times as long. The OpenMP runtime reads its settings when it is
// loaded, so the program starts itself again, with the same process id and open files. Does nothing where the
// environment says how to wait (OMP_WAIT_POLICY or GOMP_SPINCOUNT) or the program cannot be found. Call first
// in main(), before any thread.
void use_sleeping_threads(char* const* argv);

}  // namespace coat::trainer
