#include <algorithm>
#include <cmath>
#include <functional>

#include "spec/fields.h"

namespace coat::spec {
namespace {

constexpr std::size_t kMaxLabels = 64;
constexpr std::size_t kMaxLabelBytes = 63;
// Tokens of one micro-batch and of one optimizer step: with the limits of the table no product leaves 64
// bits.
constexpr std::int64_t kMaxMicroBatchTokens = std::int64_t{1} << 28;
constexpr std::int64_t kMaxStepTokens = std::int64_t{1} << 32;

// Cuts at a border of UTF-8 characters.
std::string cut(const std::string& text, std::size_t bytes) {
  std::size_t end = std::min(bytes, text.size());
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

// One field against its rule of the table.
class RangeCheck {
 public:
  explicit RangeCheck(std::vector<Violation>& violations) : violations_(violations) {}

  void operator()(const std::string& path, std::int64_t value, const IntegerRule& rule) {
    if (value < rule.min) {
      add(path, std::to_string(value) + " is too small", "use " + std::to_string(rule.min) + " or more");
    } else if (value > rule.max) {
      add(path, std::to_string(value) + " is too large", "use " + std::to_string(rule.max) + " or less");
    }
  }

  void operator()(const std::string&, std::uint64_t, const SeedRule&) {}
  void operator()(const std::string&, bool, const FlagRule&) {}

  void operator()(const std::string& path, double value, const RealRule& rule) {
    const bool low = rule.above_min ? value <= rule.min : value < rule.min;
    const bool high = rule.below_max ? value >= rule.max : value > rule.max;
    if (!std::isfinite(value)) {
      add(path, number_text(value) + " is not a finite number", "use " + allowed(rule));
    } else if (low) {
      add(path, number_text(value) + (value < 0 ? " is negative" : " is too small"), "use " + allowed(rule));
    } else if (high) {
      add(path, number_text(value) + " is too large", "use " + allowed(rule));
    }
  }

  void operator()(const std::string& path, const std::string& value, const TextRule& rule) {
    if (!rule.choices.empty()) return check_choice(path, value, rule.choices);
    if (rule.presence == Presence::kRequired && value.empty()) {
      add(path, "is empty",
          path == "name" ? "give the job a name, for example my-job" : "write the path of a file");
    } else if (value.size() > rule.max_bytes && path != "name") {
      add(path, "has " + std::to_string(value.size()) + " bytes",
          "use at most " + std::to_string(rule.max_bytes));
    }
  }

  void operator()(const std::string& path, const std::map<std::string, std::string>& labels,
                  const LabelsRule&) {
    if (labels.size() > kMaxLabels) {
      add(path, "has " + std::to_string(labels.size()) + " entries",
          "use at most " + std::to_string(kMaxLabels));
      return;
    }
    for (const auto& [key, value] : labels) check_label(path, key, value);
  }

 private:
  void add(const std::string& field, std::string message, std::string fix) {
    violations_.push_back({field, std::move(message), std::move(fix)});
  }

  static std::string allowed(const RealRule& rule) {
    const std::string low = rule.above_min ? "above " + number_text(rule.min) : number_text(rule.min);
    if (rule.max == std::numeric_limits<double>::max()) {
      return rule.above_min ? "a number " + low : "a number of " + low + " or more";
    }
    const std::string high =
        rule.below_max ? "below " + number_text(rule.max) : "at most " + number_text(rule.max);
    return "a number " + (rule.above_min ? low : "of at least " + low) + " and " + high;
  }

  void check_choice(const std::string& path, const std::string& value,
                    const std::vector<std::string>& choices) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
    const std::optional<std::string> nearest = nearest_name(value, choices);
    add(path, quoted(value) + " is not known" + (nearest ? " (did you mean " + *nearest + "?)" : ""),
        "use " + one_of(choices));
  }

  void check_label(const std::string& path, const std::string& key, const std::string& value) {
    const auto plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
             c == '_' || c == '.' || c == '/';
    };
    const bool good_key =
        !key.empty() && key.size() <= kMaxLabelBytes && std::all_of(key.begin(), key.end(), plain);
    if (!good_key) {
      add(path, "the key " + quoted(key) + " is no label key",
          "use 1 to 63 letters, digits, '-', '_', '.' or '/'");
    }
    if (value.size() > kMaxLabelBytes) {
      add(path + "." + key, "has " + std::to_string(value.size()) + " bytes",
          "use at most 63 bytes, for example " + quoted(cut(value, kMaxLabelBytes)));
    }
  }

  std::vector<Violation>& violations_;
};

bool name_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// The nearest name that follows the rule, or "my-job" when nothing of it can be kept.
std::string acceptable_name(const std::string& wanted) {
  std::string name;
  for (char c : wanted) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (name_letter(c)) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    if (name.size() == kMaxNameBytes) break;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "my-job" : name;
}

bool is_name(const std::string& name) {
  const auto allowed = [](char c) { return name_letter(c) || c == '-'; };
  return !name.empty() && name.size() <= kMaxNameBytes && name_letter(name.front()) &&
         name_letter(name.back()) && std::all_of(name.begin(), name.end(), allowed);
}

// "use 248 or 256": the neighbours of value that `unit` divides.
std::string neighbours(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  const std::string above = std::to_string(below + unit);
  return below == 0 ? "use " + above : "use " + std::to_string(below) + " or " + above;
}

// The divisors of `number` that lie around `value`: "use 2 or 4".
std::string divisor_neighbours(std::int64_t number, std::int64_t value) {
  std::int64_t below = 1;
  std::int64_t above = number;
  for (std::int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor != 0) continue;
    if (divisor < value) below = divisor;
    if (divisor > value) {
      above = divisor;
      break;
    }
  }
  if (below == above || value > number) return "use " + std::to_string(above);
  return "use " + std::to_string(below) + " or " + std::to_string(above);
}

// Rules that look at several fields, each run only where all of those are sound.
class CrossCheck {
 public:
  CrossCheck(const JobSpec& spec, std::vector<std::string> unsound, std::vector<Violation>& violations)
      : spec_(spec), unsound_(std::move(unsound)), violations_(violations) {}

  void run() {
    if (sound({"name"}) && !is_name(spec_.name)) {
      add("name", quoted(spec_.name) + " is no name: 1 to 40 of a-z, 0-9 and '-', not at its ends",
          "use for example " + acceptable_name(spec_.name));
    }
    check_model();
    check_data();
    check_training();
    if (sound({"resources.devices"}) && spec_.resources.devices > 1) {
      add("resources.devices", std::to_string(spec_.resources.devices) + " devices are asked for",
          "use 1: this release trains a job on one device");
    }
  }

 private:
  bool sound(std::initializer_list<const char*> fields) const {
    return std::none_of(fields.begin(), fields.end(), [&](const char* field) {
      return std::find(unsound_.begin(), unsound_.end(), field) != unsound_.end();
    });
  }

  void add(const std::string& field, std::string message, std::string fix) {
    violations_.push_back({field, std::move(message), std::move(fix)});
  }

  void check_model() {
    const ModelSpec& model = spec_.model;
    const std::string heads = std::to_string(model.heads);
    if (sound({"model.hidden", "model.heads"})) {
      // Rotary positions turn pairs, so the size of a head is even.
      const std::string fix = neighbours(model.hidden, 2 * model.heads);
      if (model.hidden % model.heads != 0) {
        add("model.hidden", "hidden " + std::to_string(model.hidden) + " is not divisible by heads " + heads,
            fix);
      } else if (model.hidden / model.heads % 2 != 0) {
        add("model.hidden",
            "hidden " + std::to_string(model.hidden) + " over heads " + heads + " is an odd head size of " +
                std::to_string(model.hidden / model.heads),
            fix);
      }
    }
    if (sound({"model.heads", "model.kv_heads"}) && model.heads % model.kv_heads != 0) {
      add("model.kv_heads",
          "heads " + heads + " is not divisible by kv_heads " + std::to_string(model.kv_heads),
          divisor_neighbours(model.heads, model.kv_heads));
    }
  }

  void check_data() {
    if (sound({"data.path"}) && spec_.data.path.find('\0') != std::string::npos) {
      add("data.path", "holds a NUL byte", "write the path of a file");
    }
    if (spec_.sample.prompt.empty() || !sound({"sample.prompt", "data.format"})) return;
    if (spec_.data.format != "bytes") {
      add("sample.prompt", "a prompt is text, and data.format " + spec_.data.format + " holds token ids",
          "delete sample.prompt");
      return;
    }
    if (!sound({"model.vocab_size"})) return;
    for (const char c : spec_.sample.prompt) {
      const std::int64_t token = static_cast<unsigned char>(c);
      if (token < spec_.model.vocab_size) continue;
      add("sample.prompt",
          "holds the byte " + std::to_string(token) + ", outside vocab_size " +
              std::to_string(spec_.model.vocab_size),
          "use another prompt or a model.vocab_size of 256");
      return;
    }
  }

  void check_training() {
    const TrainingSpec& training = spec_.training;
    if (sound({"training.steps", "optimizer.warmup_steps"}) &&
        spec_.optimizer.warmup_steps > training.steps) {
      add("optimizer.warmup_steps",
          "a warm-up of " + std::to_string(spec_.optimizer.warmup_steps) +
              " steps is longer than the run of " + std::to_string(training.steps),
          "use at most " + std::to_string(training.steps));
    }
    if (!sound({"training.sequence_length", "training.micro_batch"})) return;
    const std::int64_t tokens = training.sequence_length * training.micro_batch;
    if (tokens > kMaxMicroBatchTokens) {
      add("training.micro_batch",
          "a micro-batch of " + std::to_string(training.micro_batch) + " sequences of " +
              std::to_string(training.sequence_length) + " tokens is too large",
          "use at most " + std::to_string(kMaxMicroBatchTokens / training.sequence_length));
    } else if (sound({"training.accumulation_steps"}) &&
               tokens * training.accumulation_steps > kMaxStepTokens) {
      add("training.accumulation_steps",
          "a step of " + std::to_string(tokens * training.accumulation_steps) + " tokens is too large",
          "use at most " + std::to_string(std::max<std::int64_t>(1, kMaxStepTokens / tokens)));
    }
  }

  const JobSpec& spec_;
  std::vector<std::string> unsound_;
  std::vector<Violation>& violations_;
};

}  // namespace

std::vector<Violation> check_rules(const JobSpec& spec, const std::vector<std::string>& unreadable) {
  std::vector<Violation> violations;
  std::vector<std::string> unsound = unreadable;
  RangeCheck range(violations);
  visit_fields(spec, [&](const char* path, const auto& value, const auto& rule) {
    if (std::find(unreadable.begin(), unreadable.end(), path) == unreadable.end()) range(path, value, rule);
  });
  for (const Violation& violation : violations) unsound.push_back(violation.field);
  CrossCheck(spec, std::move(unsound), violations).run();
  sort_by_field(violations);
  return violations;
}

std::vector<Violation> validate(const JobSpec& spec) { return check_rules(spec, {}); }

}  // namespace coat::spec
