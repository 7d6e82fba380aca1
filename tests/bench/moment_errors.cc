#include "tests/bench/moment_errors.h"

#include <cmath>
#include <stdexcept>

#include "tests/bench/stored_moment.h"
#include "worker/core/checkpoint/checkpoint_files.h"

namespace coat::bench {
namespace {

constexpr double kEps = 1e-8;

const checkpoint::FileEntry& optimizer_file(const checkpoint::Manifest& manifest) {
  for (const checkpoint::FileEntry& file : manifest.files) {
    if (file.name == checkpoint::kOptimizerFile) return file;
  }
  throw std::runtime_error("the checkpoint holds no optimizer state");
}

}  // namespace

std::vector<MomentState> read_states(const std::string& folder) {
  checkpoint::FileSystem& files = checkpoint::real_file_system();
  const checkpoint::Manifest manifest = checkpoint::read_manifest(files, folder);
  std::vector<std::vector<float>> values;
  std::vector<checkpoint::HostTensor> tensors;
  for (const checkpoint::TensorEntry& entry : optimizer_file(manifest).tensors) {
    if (entry.dtype != "float32" || entry.name.ends_with(".amax")) {
      throw std::runtime_error("the checkpoint's moments are not FP32: train with recipe bf16");
    }
    values.emplace_back(static_cast<std::size_t>(entry.bytes) / sizeof(float));
    tensors.push_back({entry.name, entry.dtype, entry.shape, values.back().data(), entry.bytes});
  }
  checkpoint::read_tensors(files, folder, manifest, checkpoint::kOptimizerFile, tensors);
  std::vector<MomentState> states;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
    if (!tensors[i].name.ends_with(".moment1") || !tensors[i + 1].name.ends_with(".moment2")) {
      throw std::runtime_error("'" + tensors[i].name + "' is not where a first moment is expected");
    }
    states.push_back({tensors[i].name, std::move(values[i]), std::move(values[i + 1])});
  }
  return states;
}

RoundTrip round_trip(const std::vector<MomentState>& states, const MomentFormat& format, MomentUse use) {
  RoundTrip result{format, {}, 0, 0};
  double error = 0, squares = 0, flushed = 0, present = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::vector<float>& exact = use == MomentUse::kFirst ? states[i].m : states[i].v;
    StoredMoment stored(format, use, static_cast<std::int64_t>(exact.size()));
    stored.store(exact, 1, static_cast<std::uint32_t>(i));
    std::vector<float>& kept = result.values.emplace_back();
    stored.load(kept);
    for (std::size_t j = 0; j < exact.size(); ++j) {
      const double x = exact[j], x_hat = kept[j];
      error += (x_hat - x) * (x_hat - x);
      squares += x * x;
      present += x != 0 ? 1 : 0;
      flushed += x != 0 && x_hat == 0 ? 1 : 0;
    }
  }
  result.relative_error = std::sqrt(error / squares);
  result.flushed = flushed / present;
  return result;
}

double update_error(const std::vector<MomentState>& states, const RoundTrip& m, const RoundTrip& v) {
  double error = 0, count = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const MomentState& state = states[i];
    for (std::size_t j = 0; j < state.m.size(); ++j) {
      const double u = double{state.m[j]} / (std::sqrt(double{state.v[j]}) + kEps);
      const double u_hat = double{m.values[i][j]} / (std::sqrt(double{v.values[i][j]}) + kEps);
      error += (u_hat - u) * (u_hat - u);
    }
    count += static_cast<double>(state.m.size());
  }
  return error / count;
}

}  // namespace coat::bench
