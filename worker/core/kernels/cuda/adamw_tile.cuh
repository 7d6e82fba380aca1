// The optimizer step on four elements a thread, in any formats. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/api/adamw_args.h"
#include "worker/core/kernels/cuda/adamw_parts.cuh"
#include "worker/core/kernels/cuda/error_sums.cuh"

namespace coat::kernels::cuda::adamw_parts {

// Stores the moment. Elements beyond the span are 0 in `quad`. measured: *kept is what will be read back, and
// k of the group goes to *sums, by its first thread.
template <bool kMeasured>
__device__ void store_moment(const MomentStore& store, const GroupData& data, const Span& span,
                             const Quad& quad, const RoundingBits& random, GroupRange* exchange, Quad* kept,
                             ErrorSums* sums) {
  if (kMeasured) *kept = quad;
  if (store.code == MomentCode::kFp32) {
    if (span.count > 0) store_fp32(data.stored, span, quad);
    return;
  }
  const GroupRange range = group_range(quad, store.group, exchange);
  if (span.count == 0) return;
  const float amax = stored_amax(__uint_as_float(range.largest), store.bf16_amax);
  const bool zeros = amax == 0.0f;
  const int row = zeros ? kLastRow : chosen_row(store, amax, __uint_as_float(range.smallest));
  const std::uint32_t packed = zeros ? 0u : encoded_quad(store, row, amax, quad, random);
  store_bytes(data.stored, span, packed);
  const bool leads = span.first % store.group == 0;
  const std::int64_t group = span.first / store.group;
  if (leads) {
    if (store.bf16_amax) {
      static_cast<std::uint16_t*>(data.amax)[group] = encode_bf16(amax);
    } else {
      static_cast<float*>(data.amax)[group] = amax;
    }
    if (store.expand) data.row[group] = static_cast<std::uint8_t>(row);
  }
  if (!kMeasured) return;
  *kept = decoded_quad(store, row, amax, packed, span);
  for (int i = 0; i < span.count; ++i) sums->saturated += fabsf(quad.x[i]) > amax ? 1.0 : 0.0;
  if (!leads || !store.expand) return;
  const double k = store.exponents[row];
  sums->k_sum += k;
  sums->k_groups += 1.0;
  sums->k_histogram[exponent_bucket(k)] += 1.0;
}

// The errors of a span.
__device__ inline void measure(const Span& span, double eps, const Quad& m, const Quad& v, const Quad& kept_m,
                               const Quad& kept_v, AdamWErrors& errors) {
  for (int i = 0; i < span.count; ++i) {
    add_error(m.x[i], kept_m.x[i], errors.moment1);
    add_error(v.x[i], kept_v.x[i], errors.moment2);
    const double reference = static_cast<double>(m.x[i]) / (sqrt(static_cast<double>(v.x[i])) + eps);
    const double kept = static_cast<double>(kept_m.x[i]) / (sqrt(static_cast<double>(kept_v.x[i])) + eps);
    add_error(reference, kept, errors.update);
  }
}

// The four elements from `first` on, or as many as there are. Every lane of the warp takes part, on
// neighbouring elements; with groups beyond 128 every thread of the block.
template <bool kMeasured>
__device__ __noinline__ void step_quad(const AdamWLaunch& launch, const TensorEntry& t, std::int64_t first,
                                       float gradient_factor, GroupRange* exchange, AdamWErrors* errors) {
  const std::int64_t left = t.elements - first;
  const Span span{first, static_cast<int>(min(max(left, std::int64_t{0}), std::int64_t{kQuad})),
                  t.aligned && left >= kQuad};
  const StepScalars& s = launch.scalars;
  Quad value = load_value(launch.weights, t, span);
  const Quad gradient =
      launch.gradient == Format::kFp32 ? load_fp32(t.gradient, span) : load_bf16(t.gradient, span);
  const auto [m, v] =
      update(s, gradient_factor, t.keep, gradient, value, load_moment(launch.store1, t.moments[0], span),
             load_moment(launch.store2, t.moments[1], span));
  RoundingBits random{};
  if (launch.store1.stochastic || launch.store2.stochastic ||
      launch.weights == WeightFormat::kBf16Stochastic) {
    random = rounding_bits({s.seed, s.step, t.id}, t.first_index + span.first);
  }
  if (span.count > 0) store_value(launch.weights, t, span, value, random);
  Quad kept_m, kept_v;
  store_moment<kMeasured>(launch.store1, t.moments[0], span, m, random, exchange, &kept_m,
                          kMeasured ? &errors->moment1 : nullptr);
  store_moment<kMeasured>(launch.store2, t.moments[1], span, v, random, exchange, &kept_v,
                          kMeasured ? &errors->moment2 : nullptr);
  if (kMeasured) measure(span, launch.measured_eps, m, v, kept_m, kept_v, *errors);
}

}  // namespace coat::kernels::cuda::adamw_parts
