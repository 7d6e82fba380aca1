// The error that storage formats of the two moments make in u = m / (sqrt(v) + 1e-8), on states of a training
// run.
#pragma once

#include <string>
#include <vector>

#include "worker/core/quant/moment_format.h"

namespace coat::bench {

// Both moments of one parameter, in FP32.
struct MomentState {
  std::string name;
  std::vector<float> m, v;
};

// Of a checkpoint whose moments are FP32 (recipe bf16). Throws where it is not one.
std::vector<MomentState> read_states(const std::string& folder);

// One moment of all parameters after a round trip.
struct RoundTrip {
  MomentFormat format;
  std::vector<std::vector<float>> values;
  double relative_error = 0;  // ||x_hat - x|| / ||x||
  double flushed = 0;         // share of non-zero elements that became 0
};
RoundTrip round_trip(const std::vector<MomentState>& states, const MomentFormat& format, MomentUse use);

// Mean over all elements of (u_hat - u)^2.
double update_error(const std::vector<MomentState>& states, const RoundTrip& m, const RoundTrip& v);

}  // namespace coat::bench
