// The optimizer step gives the twin's bits: the same arithmetic without fused multiply-add, the same tables,
// the same random numbers.
#include <cmath>
#include <limits>
#include <memory>

#include "tests/gpu/paired.h"
#include "worker/core/base/error.h"

namespace coat::gpu_test {
namespace {

using kernels::AdamWArgs;
using kernels::AdamWErrors;
using kernels::AdamWTensor;
using kernels::ErrorSums;
using AdamWTest = GpuTest;

// A moment's data on both sides, of zeros.
struct Moment {
  Moment(const MomentFormat& format, std::int64_t elements, std::size_t misalignment)
      : codes(std::vector<std::uint8_t>(static_cast<std::size_t>(elements * (format.is_quantized() ? 1 : 4)),
                                        0),
              misalignment),
        amax(std::vector<float>(groups(format, elements), 0.0f)),
        row(std::vector<std::uint8_t>(groups(format, elements), 255)) {}
  static std::size_t groups(const MomentFormat& format, std::int64_t elements) {
    return static_cast<std::size_t>(format.groups(elements));
  }
  Paired<std::uint8_t> codes;
  Paired<float> amax;
  Paired<std::uint8_t> row;
};

struct Tensor {
  Tensor(const MomentFormat& moment1, const MomentFormat& moment2, std::int64_t elements,
         std::uint32_t number, std::size_t misalignment)
      : value(values(elements, Fill::kSpread, number), misalignment),
        gradient(elements, misalignment),
        m(moment1, elements, misalignment),
        v(moment2, elements, misalignment),
        id(number) {}

  void new_gradient(Fill fill, std::uint64_t seed) {
    const std::vector<float> fresh = values(gradient.count(), fill, seed + 1000 * id);
    std::copy(fresh.begin(), fresh.end(), gradient.host());
    gradient.upload();
  }
  AdamWTensor host() {
    return {.value = value.host(),
            .gradient = gradient.host(),
            .elements = value.count(),
            .m = {m.codes.host(), m.amax.host(), m.row.host()},
            .v = {v.codes.host(), v.amax.host(), v.row.host()},
            .decay = id % 2 == 0,
            .id = id,
            .first_index = 128 * id};
  }
  AdamWTensor device() {
    return {.value = value.device(),
            .gradient = gradient.device(),
            .elements = value.count(),
            .m = {m.codes.device(), m.amax.device(), m.row.device()},
            .v = {v.codes.device(), v.amax.device(), v.row.device()},
            .decay = id % 2 == 0,
            .id = id,
            .first_index = 128 * id};
  }
  void expect_same() {
    EXPECT_TRUE(same_bits(value)) << "value of tensor " << id;
    EXPECT_TRUE(same_bits(m.codes)) << "m of tensor " << id;
    EXPECT_TRUE(same_bits(m.amax)) << "m's amax of tensor " << id;
    EXPECT_TRUE(same_bits(m.row)) << "m's rows of tensor " << id;
    EXPECT_TRUE(same_bits(v.codes)) << "v of tensor " << id;
    EXPECT_TRUE(same_bits(v.amax)) << "v's amax of tensor " << id;
    EXPECT_TRUE(same_bits(v.row)) << "v's rows of tensor " << id;
  }

  Paired<float> value, gradient;
  Moment m, v;
  std::uint32_t id;
};

class Model {
 public:
  Model(const MomentFormat& moment1, const MomentFormat& moment2, const std::vector<std::int64_t>& sizes,
        std::size_t misalignment = 0) {
    args_.moment1 = moment1;
    args_.moment2 = moment2;
    args_.learning_rate = 1e-3f;
    args_.beta1 = 0.9f;
    args_.beta2 = 0.95f;
    args_.eps = 1e-8f;
    args_.weight_decay = 0.1f;
    args_.seed = 0x123456789ABCDEFu;
    for (const std::int64_t size : sizes) {
      tensors_.push_back(std::make_unique<Tensor>(
          moment1, moment2, size, static_cast<std::uint32_t>(tensors_.size() + 1), misalignment));
    }
  }

  // One step on both sides; the errors are those of both, CPU first, where they are wanted.
  void step(const kernels::Kernels& cpu, const kernels::Kernels& cuda, std::uint64_t number, Fill fill,
            AdamWErrors* errors = nullptr) {
    args_.step = number;
    args_.bias_correction1 = 1 - std::pow(0.9, static_cast<double>(number));
    args_.bias_correction2 = 1 - std::pow(0.95, static_cast<double>(number));
    for (const auto& tensor : tensors_) tensor->new_gradient(fill, number);
    AdamWArgs host = args_, device = args_;
    host.gradient_scale = scale_.host();
    device.gradient_scale = scale_.device();
    for (const auto& tensor : tensors_) {
      host.tensors.push_back(tensor->host());
      device.tensors.push_back(tensor->device());
    }
    if (errors == nullptr) {
      cpu.adamw(host, {});
      cuda.adamw(device, {});
    } else {
      cpu.adamw_measured(host, &errors[0], {});
      cuda.adamw_measured(device, &errors[1], {});
    }
  }
  void scale_by(float factor) {
    scale_.host()[0] = factor;
    scale_.upload();
  }
  void expect_same() {
    for (const auto& tensor : tensors_) tensor->expect_same();
  }

 private:
  AdamWArgs args_{};
  std::vector<std::unique_ptr<Tensor>> tensors_;
  Paired<float> scale_{std::vector<float>{0.37f}};
};

MomentFormat moment(int group, Rounding rounding) {
  return moment_format(MomentCode::kE4M3, /*expand=*/true, group, rounding);
}

const std::vector<std::int64_t> kSizes = {1, 127, 128, 129, 5120, 100003, 4096 * 64 + 4, 3};

struct Pair {
  MomentFormat m, v;
};
const std::vector<Pair> kPairs = {{moment(128, Rounding::kStochastic), moment(128, Rounding::kStochastic)},
                                  {moment(128, Rounding::kNearestEven), moment(128, Rounding::kNearestEven)},
                                  {MomentFormat{}, MomentFormat{}},
                                  {MomentFormat{}, moment(128, Rounding::kStochastic)},
                                  {moment(16, Rounding::kStochastic), moment(64, Rounding::kNearestEven)}};

TEST_F(AdamWTest, StepsGiveTheTwinsBits) {
  for (std::size_t i = 0; i < kPairs.size(); ++i) {
    SCOPED_TRACE("formats " + std::to_string(i));
    Model model(kPairs[i].m, kPairs[i].v, kSizes);
    for (std::uint64_t step = 1; step <= 6; ++step) model.step(cpu(), cuda(), step, Fill::kSpread);
    model.expect_same();
  }
}

TEST_F(AdamWTest, ZeroConstantAndTinyGradients) {
  Model model(kPairs[0].m, kPairs[0].v, kSizes);
  std::uint64_t step = 0;
  for (const Fill fill :
       {Fill::kZeros, Fill::kConstant, Fill::kTiny, Fill::kZeros, Fill::kSpread, Fill::kZeros}) {
    model.step(cpu(), cuda(), ++step, fill);
    model.expect_same();
  }
}

TEST_F(AdamWTest, MisalignedTensors) {
  Model model(kPairs[0].m, kPairs[0].v, {5120, 129, 7}, 4);
  for (std::uint64_t step = 1; step <= 3; ++step) model.step(cpu(), cuda(), step, Fill::kSpread);
  model.expect_same();
}

TEST_F(AdamWTest, ManyTensorsInOneLaunch) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < 300; ++i) sizes.push_back(1 + i * 37 % 2000);
  Model model(kPairs[0].m, kPairs[0].v, sizes);
  for (std::uint64_t step = 1; step <= 2; ++step) model.step(cpu(), cuda(), step, Fill::kSpread);
  model.expect_same();
}

void expect_same_sums(const ErrorSums& cpu, const ErrorSums& cuda) {
  // FP64 sums of as many terms in another order.
  EXPECT_NEAR(cpu.error_squared, cuda.error_squared, 1e-12 * cpu.error_squared);
  EXPECT_NEAR(cpu.reference_squared, cuda.reference_squared, 1e-12 * cpu.reference_squared);
  EXPECT_EQ(cpu.underflowed, cuda.underflowed);
  EXPECT_EQ(cpu.elements, cuda.elements);
  EXPECT_EQ(cpu.k_groups, cuda.k_groups);
  EXPECT_NEAR(cpu.k_sum, cuda.k_sum, 1e-12 * cpu.k_sum);
  EXPECT_EQ(cpu.saturated, cuda.saturated);
  EXPECT_EQ(cpu.k_histogram, cuda.k_histogram);
}

TEST_F(AdamWTest, MeasuredStep) {
  for (const Pair& pair : kPairs) {
    Model model(pair.m, pair.v, kSizes);
    AdamWErrors errors[2];
    for (std::uint64_t step = 1; step <= 2; ++step) model.step(cpu(), cuda(), step, Fill::kSpread, errors);
    model.expect_same();
    expect_same_sums(errors[0].moment1, errors[1].moment1);
    expect_same_sums(errors[0].moment2, errors[1].moment2);
    expect_same_sums(errors[0].update, errors[1].update);
  }
}

TEST_F(AdamWTest, AStepWhoseScaleIsNanIsSkipped) {
  for (const Pair& pair : {kPairs[0], kPairs[2]}) {
    Model model(pair.m, pair.v, kSizes);
    model.step(cpu(), cuda(), 1, Fill::kSpread);
    model.scale_by(std::numeric_limits<float>::quiet_NaN());
    AdamWErrors errors[2];
    for (AdamWErrors* measured : {static_cast<AdamWErrors*>(nullptr), errors}) {
      model.step(cpu(), cuda(), 2, Fill::kSpread, measured);
      model.expect_same();
    }
    EXPECT_EQ(errors[1].moment1.elements, 0);
  }
}

TEST_F(AdamWTest, ClipFactorHasTheTwinsBits) {
  for (const double squares : {0.0, 1e-300, 0.25, 1.0, 3.7, 1e30, 1e300, HUGE_VAL, std::nan("")}) {
    for (const double clip_norm : {0.0, 1.0, 0.3}) {
      Paired<double> sum(std::vector<double>{squares});
      Paired<float> factor(std::vector<float>{0.0f});
      cpu().clip_factor({.sum_of_squares = sum.host(), .clip_norm = clip_norm, .factor = factor.host()}, {});
      cuda().clip_factor({.sum_of_squares = sum.device(), .clip_norm = clip_norm, .factor = factor.device()},
                         {});
      const float on_device = factor.from_device()[0];
      EXPECT_EQ(std::isnan(factor.host()[0]), std::isnan(on_device)) << squares;
      if (!std::isnan(on_device)) {
        EXPECT_EQ(factor.host()[0], on_device) << squares << " " << clip_norm;
      }
    }
  }
}

TEST_F(AdamWTest, WrongFormatsAreRefused) {
  AdamWArgs args{};
  args.moment1 = moment_format(MomentCode::kSqrt8, true, 128, Rounding::kNearestEven);
  args.moment2 = kPairs[0].v;
  EXPECT_THROW(cuda().adamw(args, {}), std::logic_error) << "no negative values";
  args.moment1 = moment(96, Rounding::kNearestEven);
  EXPECT_THROW(cuda().adamw(args, {}), UnsupportedError);
  args.moment1 = kPairs[0].m;
  EXPECT_NO_THROW(cuda().adamw(args, {})) << "no tensors: nothing to do";
}

}  // namespace
}  // namespace coat::gpu_test
