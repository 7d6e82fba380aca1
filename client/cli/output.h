// Jobs and workers in the formats of `-o`.
#pragma once

#include <string>
#include <vector>

#include "client/cli/terminal.h"
#include "proto/coat/v1/types.pb.h"

namespace coat::cli {

enum class Format { kTable, kWide, kJson, kYaml, kName };

struct OutputOptions {
  Format format = Format::kTable;
  bool headers = true;
};

// A message as JSON (indented) or YAML with the same content.
void print_message(std::ostream& out, Format format, const google::protobuf::Message& message);
// {"<field>": [...]}.
void print_messages(std::ostream& out, Format format, const std::string& field,
                    const std::vector<const google::protobuf::Message*>& messages);
// JSON text as YAML: the same names, values and types.
std::string json_to_yaml(const std::string& json);

void print_jobs(const Terminal& terminal, const OutputOptions& options, const std::vector<v1::Job>& jobs);
void print_workers(const Terminal& terminal, const OutputOptions& options,
                   const std::vector<v1::Worker>& workers);

// "quickstart-x7k2p" of "jobs/quickstart-x7k2p"; likewise for workers.
std::string short_name(const std::string& name);
// "PENDING"; "?" for a state that this release does not know.
std::string state_text(v1::Job::State state);
std::string state_text(v1::Attempt::State state);
// Why it waits or how it ended, in one line; empty where there is nothing to say.
std::string note_of(const v1::Job& job);

}  // namespace coat::cli
