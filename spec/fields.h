// The one table of a job's fields: path, place in spec::JobSpec and the values it may take. Reading, writing,
// the list of paths and the range rules all walk it, so a field that is added here is added everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "spec/job_spec.h"

namespace coat::spec {

enum class Presence { kOptional, kRequired };

struct IntegerRule {
  std::int64_t min = 0;
  std::int64_t max = 0;
  Presence presence = Presence::kOptional;
};

// Any unsigned 64-bit number.
struct SeedRule {};

struct RealRule {
  double min = 0;
  double max = 0;
  bool above_min = false;  // min itself is refused
  bool below_max = false;  // max itself is refused
};

struct TextRule {
  std::size_t max_bytes = 0;
  std::vector<std::string> choices;  // empty: any text
  Presence presence = Presence::kOptional;
};

struct FlagRule {};
struct LabelsRule {};

inline constexpr std::int64_t kMaxSteps = 1'000'000'000;
inline constexpr std::size_t kMaxNameBytes = 40;

// Calls visitor(path, value, rule) for each field in the order in which a person reads them. `Spec` is
// JobSpec or const JobSpec. The limits keep every product that the trainer forms (bytes of weights, of
// activations, of attention scores) inside 64 bits; together with the rule on tokens a step they leave room
// for eight bytes an element.
template <typename Spec, typename Visitor>
void visit_fields(Spec& spec, Visitor&& visitor) {
  constexpr double kHuge = std::numeric_limits<double>::max();
  constexpr auto kRequired = Presence::kRequired;

  visitor("name", spec.name, TextRule{kMaxNameBytes, {}, kRequired});
  visitor("recipe", spec.recipe, TextRule{64, recipe_names()});

  visitor("model.vocab_size", spec.model.vocab_size, IntegerRule{2, 1 << 24});
  visitor("model.hidden", spec.model.hidden, IntegerRule{2, 1 << 16});
  visitor("model.intermediate", spec.model.intermediate, IntegerRule{1, 1 << 18});
  visitor("model.layers", spec.model.layers, IntegerRule{1, 1024});
  visitor("model.heads", spec.model.heads, IntegerRule{1, 1024});
  visitor("model.kv_heads", spec.model.kv_heads, IntegerRule{1, 1024});
  visitor("model.norm_eps", spec.model.norm_eps, RealRule{0, 1, true});
  visitor("model.rope_theta", spec.model.rope_theta, RealRule{1, 1e15});
  visitor("model.tie_embeddings", spec.model.tie_embeddings, FlagRule{});

  visitor("data.path", spec.data.path, TextRule{4096, {}, kRequired});
  visitor("data.format", spec.data.format, TextRule{16, {"bytes", "uint16", "uint32"}});

  visitor("training.steps", spec.training.steps, IntegerRule{1, kMaxSteps, kRequired});
  visitor("training.sequence_length", spec.training.sequence_length, IntegerRule{1, 1 << 20});
  visitor("training.micro_batch", spec.training.micro_batch, IntegerRule{1, 1 << 16});
  visitor("training.accumulation_steps", spec.training.accumulation_steps, IntegerRule{1, 1 << 16});
  visitor("training.seed", spec.training.seed, SeedRule{});

  visitor("optimizer.learning_rate", spec.optimizer.learning_rate, RealRule{0, kHuge, true});
  visitor("optimizer.schedule", spec.optimizer.schedule, TextRule{16, {"cosine", "linear", "constant"}});
  visitor("optimizer.warmup_steps", spec.optimizer.warmup_steps, IntegerRule{0, kMaxSteps});
  visitor("optimizer.final_lr_fraction", spec.optimizer.final_lr_fraction, RealRule{0, 1});
  visitor("optimizer.beta1", spec.optimizer.beta1, RealRule{0, 1, false, true});
  visitor("optimizer.beta2", spec.optimizer.beta2, RealRule{0, 1, false, true});
  visitor("optimizer.eps", spec.optimizer.eps, RealRule{0, 1, true});
  visitor("optimizer.weight_decay", spec.optimizer.weight_decay, RealRule{0, kHuge});
  visitor("optimizer.clip_norm", spec.optimizer.clip_norm, RealRule{0, kHuge});

  visitor("checkpoint.interval_steps", spec.checkpoint.interval_steps, IntegerRule{0, kMaxSteps});
  visitor("checkpoint.keep", spec.checkpoint.keep, IntegerRule{1, 1000});

  visitor("metrics.quantization_interval_steps", spec.metrics.quantization_interval_steps,
          IntegerRule{0, kMaxSteps});

  visitor("sample.prompt", spec.sample.prompt, TextRule{64 * 1024, {}});
  visitor("sample.tokens", spec.sample.tokens, IntegerRule{1, 1 << 20});
  visitor("sample.temperature", spec.sample.temperature, RealRule{0, 100});

  visitor("resources.devices", spec.resources.devices, IntegerRule{1, 1024});
  visitor("resources.device", spec.resources.device, TextRule{16, {"auto", "cpu", "cuda"}});

  visitor("retry.max_retries", spec.retry.max_retries, IntegerRule{0, 100});

  visitor("stop_grace_seconds", spec.stop_grace_seconds, RealRule{0, 3600});
  visitor("labels", spec.labels, LabelsRule{});
}

// Rules on a filled struct but those that look at a field of `unreadable`, sorted by field.
std::vector<Violation> check_rules(const JobSpec& spec, const std::vector<std::string>& unreadable);

// Stable, by the place of the field in the table; a field that is not in it comes after the last one of its
// section.
void sort_by_field(std::vector<Violation>& violations);

// Shortest decimal that reads back as the same number; "NaN", "Infinity", "-Infinity".
std::string number_text(double value);
// In double quotes, cut after 60 bytes, control characters as \xNN.
std::string quoted(const std::string& text);
// "a, b or c".
std::string one_of(const std::vector<std::string>& names);

}  // namespace coat::spec
