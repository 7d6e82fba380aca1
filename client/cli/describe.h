// Everything about one job, for a person.
#pragma once

#include <ostream>
#include <vector>

#include "client/cli/terminal.h"
#include "proto/coat/v1/types.pb.h"

namespace coat::cli {

struct JobDetails {
  v1::Job job;
  std::vector<v1::Attempt> attempts;
  std::vector<v1::Event> events;
};

void print_details(const Terminal& terminal, const JobDetails& details);
// The ledger of a recipe by category beside bf16's, with factors.
void print_memory(std::ostream& out, const std::string& recipe, const v1::MemoryBreakdown& ours,
                  const v1::MemoryBreakdown& bf16);

}  // namespace coat::cli
