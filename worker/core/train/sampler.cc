#include "worker/core/train/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <ATen/ops/empty.h>

namespace coat::train {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

// Length of the well-formed UTF-8 sequence at `at` (Unicode 15, table 3-7), 0 where there is none.
std::size_t sequence_length(const std::string& bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U;
  };
  const auto tail = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(at + 1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return tail(at + 1, low, high) && tail(at + 2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return tail(at + 1, low, high) && tail(at + 2) && tail(at + 3) ? 4 : 0;
  }
  return 0;
}

bool is_control(const std::string& bytes, std::size_t at, std::size_t length) {
  const auto lead = static_cast<unsigned char>(bytes[at]);
  if (length == 1) return (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7F;
  return length == 2 && lead == 0xC2 && static_cast<unsigned char>(bytes[at + 1]) < 0xA0;  // U+0080..U+009F
}

at::Tensor token_tensor(const std::vector<std::int32_t>& tokens, std::int64_t context, at::Device device) {
  const std::size_t count = std::min(tokens.size(), static_cast<std::size_t>(context));
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(count)}, at::TensorOptions().dtype(at::kInt));
  std::memcpy(tensor.mutable_data_ptr(), tokens.data() + (tokens.size() - count),
              count * sizeof(std::int32_t));
  return device.is_cpu() ? tensor : tensor.to(device);
}

}  // namespace

std::string printable_text(const std::string& bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = sequence_length(bytes, at);
    if (length == 0 || is_control(bytes, at, length)) {
      text += kReplacement;
    } else {
      text.append(bytes, at, length);
    }
    at += std::max<std::size_t>(length, 1);
  }
  return text;
}

std::int64_t draw_token(const float* logits, std::int64_t count, double temperature, double uniform) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isfinite(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  }
  if (best < 0) return 0;
  if (temperature == 0) return best;
  std::vector<double> weights(static_cast<std::size_t>(count), 0);
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(logits[i])) continue;
    const double above = static_cast<double>(logits[i]) - static_cast<double>(logits[best]);
    sum += weights[static_cast<std::size_t>(i)] = std::exp(above / temperature);
  }
  double left = uniform * sum;
  std::int64_t last = best;
  for (std::int64_t i = 0; i < count; ++i) {
    const double weight = weights[static_cast<std::size_t>(i)];
    if (weight == 0) continue;
    if (left < weight) return i;
    left -= weight;
    last = i;  // rounding may leave a trace of `left` after the last one
  }
  return last;
}

std::string sample_text(LanguageModel& model, const SampleOptions& options, at::Device device,
                        const std::function<bool()>& interrupted) {
  std::vector<std::int32_t> tokens;
  for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  std::mt19937_64 random(options.seed);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    if (interrupted && interrupted()) break;
    const at::Tensor logits =
        model.next_token_logits(token_tensor(tokens, options.context, device)).to(at::kCPU);
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    const std::int64_t id =
        draw_token(logits.const_data_ptr<float>(), logits.numel(), options.temperature, uniform);
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  std::string bytes;
  for (const std::int32_t id : tokens) bytes += id < 256 ? static_cast<char>(id) : '\xFF';
  return printable_text(bytes);
}

}  // namespace coat::train
