#include "tests/bench/stored_moment.h"

namespace coat::bench {

StoredMoment::StoredMoment(const MomentFormat& format, MomentUse use, std::int64_t elements)
    : codec_(format, use),
      elements_(elements),
      codes_(static_cast<std::size_t>(elements)),
      amax_(static_cast<std::size_t>(format.groups(elements))),
      rows_(static_cast<std::size_t>(format.groups(elements))) {}

kernels::MomentData StoredMoment::data() const { return {codes_.data(), amax_.data(), rows_.data()}; }

void StoredMoment::store(const std::vector<float>& values, std::uint64_t step, std::uint32_t tensor) {
  const std::uint32_t* random = nullptr;
  if (codec_.is_stochastic()) {
    random = kernels::cpu::fill_rounding_bits({1, step, tensor}, 0, elements_, random_);
  }
  codec_.store(data(), 0, elements_, values.data(), random, ratio_);
}

void StoredMoment::load(std::vector<float>& values) const {
  values.resize(static_cast<std::size_t>(elements_));
  codec_.load(data(), 0, elements_, values.data());
}

std::string label_of(const MomentFormat& format) {
  return std::string(name_of(format.code)) + (format.expand && !always_expands(format.code) ? "+X" : "");
}

}  // namespace coat::bench
