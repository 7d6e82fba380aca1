// An optimizer step as its kernels are told of it.
#pragma once

#include <cstdint>

#include "worker/core/quant/moment_format.h"
#include "worker/core/quant/philox.h"
#include "worker/core/quant/weight_format.h"

namespace coat {
struct OctaveTables;
}  // namespace coat

namespace coat::kernels::cuda {

// How one moment is stored.
struct MomentStore {
  MomentCode code = MomentCode::kFp32;
  int group = 0;  // 0 for FP32
  bool expand = false;
  bool bf16_amax = false;
  bool stochastic = false;
  // Of codes with a table (quant/moment_table.h), all rows in device memory.
  int width = 0, last = 0, first_row = 0;
  const float* values = nullptr;
  const float* boundaries = nullptr;
  const double* limits = nullptr;  // RowChoice::limits(), of codes that are no octaves
  const float* reach = nullptr;    // OctaveRows::reach() and what goes with it, of octave codes
  const OctaveTables* octaves = nullptr;
  float log_bound = 0;                // 16 log2 of the range bound
  const double* exponents = nullptr;  // k of the rows
};

struct GroupData {
  void* stored;
  void* amax;
  std::uint8_t* row;
};

// AdamWTensor as a kernel reads it.
struct TensorEntry {
  void* value;
  std::int8_t* residual;
  const void* gradient;
  std::int64_t elements;
  GroupData moments[2];  // m, v
  std::int64_t first_index;
  std::int64_t first_tile;  // of the launch's tiles, numbered through
  std::uint32_t id;
  float keep;               // 1 - learning rate * decay
  bool aligned;             // four elements can be read at once, and share a Philox block
  std::int64_t fast_tiles;  // the tiles that adamw_fast takes, from the first on
};

struct StepScalars {
  const float* gradient_scale;
  float beta1, beta2, rest1, square, inverse_step, eps;  // UpdateScalars
  std::uint64_t seed, step;
  PhiloxKey keys[kRoundingRounds];
};

struct AdamWLaunch {
  const TensorEntry* tensors;  // device memory
  int count;
  std::int64_t tiles;
  WeightFormat weights;
  Format gradient;
  MomentStore store1, store2;
  StepScalars scalars;
  double measured_eps;  // of the update whose error is measured
};

}  // namespace coat::kernels::cuda
