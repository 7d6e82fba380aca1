// Loads that are under way while a thread works on. Device code only.
#pragma once

#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {

// What load() reads, not decoded yet: a thread goes on past a fetch, but waits where it decodes.
template <typename M>
struct Fetched {
  Values values;
};
template <>
struct Fetched<Bf16Matrix> {
  uint4 codes;
};
template <>
struct Fetched<GroupedE4M3> {
  uint2 codes;
  std::uint16_t scale;
};

// The chunk at col + further; `further` is a multiple of 16. Where it is known to the compiler, several
// chunks share one address.
template <typename M>
__device__ inline Fetched<M> fetch(const M& m, std::int64_t row, std::int64_t col, int further = 0) {
  return {load(m, row, col + further)};
}
// Both inside the matrix only.
template <>
__device__ inline Fetched<Bf16Matrix> fetch(const Bf16Matrix& m, std::int64_t row, std::int64_t col,
                                            int further) {
  const std::uint16_t* at = static_cast<const std::uint16_t*>(m.data) + row * m.cols + col;
  return {*reinterpret_cast<const uint4*>(at + further)};
}
template <>
__device__ inline Fetched<GroupedE4M3> fetch(const GroupedE4M3& m, std::int64_t row, std::int64_t col,
                                             int further) {
  const std::uint8_t* at = static_cast<const std::uint8_t*>(m.data) + row * m.cols + col;
  const std::uint16_t* scale =
      static_cast<const std::uint16_t*>(m.scale) + row * m.groups_per_row + col / m.group;
  return {*reinterpret_cast<const uint2*>(at + further), scale[further / m.group]};
}

// The chunks of one column of chunks, of a row and those below it.
template <typename M>
struct FetchedColumn {
  const M& m;
  std::int64_t row0, col;
  __device__ Fetched<M> fetch(int i) const { return cuda::fetch(m, row0 + i, col); }
};
template <>
struct FetchedColumn<GroupedE4M3> {
  const std::uint8_t* codes;
  const std::uint16_t* scales;
  std::int64_t cols, groups_per_row;
  __device__ Fetched<GroupedE4M3> fetch(int i) const {
    return {*reinterpret_cast<const uint2*>(codes + i * cols), scales[i * groups_per_row]};
  }
};
template <typename M>
__device__ inline FetchedColumn<M> fetched_column(const M& m, std::int64_t row0, std::int64_t col) {
  return {m, row0, col};
}
template <>
__device__ inline FetchedColumn<GroupedE4M3> fetched_column(const GroupedE4M3& m, std::int64_t row0,
                                                            std::int64_t col) {
  return {static_cast<const std::uint8_t*>(m.data) + row0 * m.cols + col,
          static_cast<const std::uint16_t*>(m.scale) + row0 * m.groups_per_row + col / m.group, m.cols,
          m.groups_per_row};
}

template <typename M>
__device__ inline Values decoded(const Fetched<M>& fetched) {
  return fetched.values;
}
template <>
__device__ inline Values decoded(const Fetched<Bf16Matrix>& fetched) {
  return decode_words(fetched.codes);
}
template <>
__device__ inline Values decoded(const Fetched<GroupedE4M3>& fetched) {
  return times(decode_bytes<Format::kE4M3>(fetched.codes), decode_bf16(fetched.scale));
}

}  // namespace coat::kernels::cuda
