// coat-trainer: runs one job and exits.
#include <cstdio>
#include <iostream>

#include "worker/protocol/exit_codes.h"
#include "worker/trainer/options.h"
#include "worker/trainer/sleeping_threads.h"
#include "worker/trainer/trainer.h"

int main(int argc, char** argv) {
  using coat::protocol::ExitCode;
  coat::trainer::use_sleeping_threads(argv);
  try {
    const coat::trainer::Options options = coat::trainer::parse_options(argc, argv);
    if (options.version) {
      std::cout << "coat-trainer " << COAT_VERSION << std::endl;
      return static_cast<int>(ExitCode::kDone);
    }
    return static_cast<int>(coat::trainer::run_trainer(options));
  } catch (const coat::trainer::UsageError& error) {
    (error.is_help ? std::cout : std::cerr) << error.what() << std::endl;
    return static_cast<int>(error.is_help ? ExitCode::kDone : ExitCode::kBadSpec);
  }
}
