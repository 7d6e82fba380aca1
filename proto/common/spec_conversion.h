// coat.v1.JobSpec <-> spec::JobSpec <-> YAML. The wire message keeps which fields the person set;
// spec::JobSpec has all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/coat/v1/types.pb.h"
#include "proto/common/result.h"
#include "spec/job_spec.h"

namespace coat {

// The JSON form of the message with proto field names; only what is set.
std::string spec_json(const v1::JobSpec& message);
// Every static rule on a message: spec::parse_json(spec_json(message)).
spec::ParseResult check_spec(const v1::JobSpec& message);
// A message with every field set.
v1::JobSpec to_message(const spec::JobSpec& spec);

// A YAML job file: one mapping whose keys are the spec's fields. Strict: a duplicate key, an unknown field
// (with the nearest known one), a wrong type, an anchor loop, a second document or more than 1 MiB are
// violations that carry line and field. `overrides` are "field.path=value" as `--set` takes them, applied
// last; values are YAML scalars.
Result<v1::JobSpec> parse_yaml(const std::string& text, const std::string& file_name,
                               const std::vector<std::pair<std::string, std::string>>& overrides);

}  // namespace coat
