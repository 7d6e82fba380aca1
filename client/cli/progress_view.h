// A job's progress as it runs: one line that is rewritten on a terminal, else a line at each change of state
// and every few seconds. Not thread-safe.
#pragma once

#include <ostream>
#include <string>

#include "client/cli/terminal.h"
#include "proto/coat/v1/job_service.pb.h"

namespace coat::cli {

class ProgressView {
 public:
  // Writes to `out`, which is a terminal or not.
  ProgressView(const Terminal& terminal, std::ostream& out, bool is_tty);

  void show(const v1::Job& job);
  // A line above the progress, such as an attempt that was lost.
  void say(const std::string& text);
  // The bar goes away; what comes next starts on a line of its own.
  void finish();

 private:
  void show_state(const v1::Job& job);
  void rewrite(const std::string& line);

  const Terminal& terminal_;
  std::ostream& out_;
  bool is_tty_;
  bool bar_shown_ = false;
  std::string last_state_;
  std::int64_t last_step_ = -1;
  SteadyTime last_line_time_{};
};

// "step 40/120  loss 2.4123  3.4k tokens/s  memory 104 MiB  error activation 2.63 %, moment1 1.10 %  left 1m
// 20s".
std::string progress_text(const v1::Job& job);
// What ended how, for people; several lines where there is a fix to tell.
std::string outcome_text(const Terminal& terminal, const v1::Job& job);

}  // namespace coat::cli
