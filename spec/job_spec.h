// What a job may ask for: every field, its default, unit and limit, once. The client reads YAML into it, the
// controller checks with it, the trainer runs from it. No protobuf, no libtorch: this folder is used from
// both sides of that border.
//
// The wire form is coat.v1.JobSpec; a test holds the two field by field against each other. The JSON form is
// protobuf's JSON with the proto's own (snake_case) field names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace coat::spec {

// A decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
struct ModelSpec {
  std::int64_t vocab_size = 256;
  std::int64_t hidden = 256;
  std::int64_t intermediate = 688;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 4;  // default: heads
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  bool tie_embeddings = false;  // the head shares the embedding's weight

  bool operator==(const ModelSpec&) const = default;
};

struct DataSpec {
  std::string path;              // one file, as the worker sees it; required
  std::string format = "bytes";  // "bytes": a token is a byte; "uint16", "uint32": little-endian token ids

  bool operator==(const DataSpec&) const = default;
};

struct TrainingSpec {
  std::int64_t steps = 0;               // optimizer steps; required
  std::int64_t sequence_length = 256;   // tokens of one sequence
  std::int64_t micro_batch = 8;         // sequences of one forward and backward pass
  std::int64_t accumulation_steps = 1;  // micro-batches of one optimizer step
  std::uint64_t seed = 1;               // of initial weights, order of data and stochastic rounding

  bool operator==(const TrainingSpec&) const = default;
};

struct OptimizerSpec {
  double learning_rate = 3e-4;      // the peak
  std::string schedule = "cosine";  // "cosine", "linear" or "constant", after the warm-up
  std::int64_t warmup_steps = 0;    // linear from 0
  double final_lr_fraction = 0.1;   // of learning_rate, reached at the last step
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // decoupled; not applied to norm weights
  double clip_norm = 1.0;     // global gradient norm; 0 switches clipping off

  bool operator==(const OptimizerSpec&) const = default;
};

struct CheckpointSpec {
  std::int64_t interval_steps = 0;  // 0: only at the end and when asked to stop
  std::int64_t keep = 2;            // newest complete checkpoints that stay

  bool operator==(const CheckpointSpec&) const = default;
};

struct MetricsSpec {
  std::int64_t quantization_interval_steps =
      10;  // quantization error is measured every so many steps; 0: never

  bool operator==(const MetricsSpec&) const = default;
};

// Text made from the trained model at the end of the job.
struct SampleSpec {
  std::string prompt;         // empty: no sample
  std::int64_t tokens = 200;  // new tokens
  double temperature = 0.8;   // 0: the likeliest token each time

  bool operator==(const SampleSpec&) const = default;
};

struct ResourceSpec {
  std::int64_t devices = 1;     // all on one worker, all or none (a gang)
  std::string device = "auto";  // "auto": cuda where the worker has it, else cpu; "cpu"; "cuda"

  bool operator==(const ResourceSpec&) const = default;
};

struct RetrySpec {
  std::int64_t max_retries =
      3;  // new attempts after a failure that may pass; a lost worker or a preemption costs none

  bool operator==(const RetrySpec&) const = default;
};

struct JobSpec {
  std::string name;             // [a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?; required
  std::string recipe = "coat";  // a name from recipe_names()
  ModelSpec model;
  DataSpec data;
  TrainingSpec training;
  OptimizerSpec optimizer;
  CheckpointSpec checkpoint;
  MetricsSpec metrics;
  SampleSpec sample;
  ResourceSpec resources;
  RetrySpec retry;
  double stop_grace_seconds = 60;  // from the request for a checkpoint to SIGKILL
  std::map<std::string, std::string> labels;

  bool operator==(const JobSpec&) const = default;
};

// One thing wrong with a spec. `field` is a path as the person wrote it ("model.kv_heads", "training.steps").
struct Violation {
  std::string field;
  std::string message;  // what is wrong, with the value
  std::string fix;      // what to write instead

  bool operator==(const Violation&) const = default;
};

struct ParseResult {
  JobSpec spec;                       // meaningful only when violations is empty
  std::vector<Violation> violations;  // all of them, in the order of the fields
  bool ok() const { return violations.empty(); }
};

// Names of the recipe presets, the default first. What a recipe is lies in worker/core/quant/recipe.h; a test
// there holds its presets against this list.
const std::vector<std::string>& recipe_names();

// Reads the JSON form strictly and checks every rule that needs no look at a machine: an unknown field is a
// violation that names the nearest known one; so are a wrong type, a value out of range and fields that
// contradict each other. 64-bit integers may come as JSON strings, as protobuf writes them. `json_text` that
// is no JSON is one violation of field "".
ParseResult parse_json(const std::string& json_text);

// All rules again on a filled struct (what parse_json applies after reading).
std::vector<Violation> validate(const JobSpec& spec);

// The JSON form with every field present: parse_json(to_json(s)).spec == s for a valid s.
std::string to_json(const JobSpec& spec);

// "field: message; fix" lines, one a violation, for people.
std::string format_violations(const std::vector<Violation>& violations);

// Every field path that a spec may hold ("model.hidden", ...), for `--set`, completion and the test against
// the proto.
const std::vector<std::string>& field_paths();

// The known name nearest to `name` by edit distance, if any is near enough to be a slip of the hand.
std::optional<std::string> nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace coat::spec
