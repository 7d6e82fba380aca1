// The optimizer step gives the twin's bits: the same arithmetic, the same tables, the same random numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "tests/gpu/paired.h"
#include "worker/core/base/error.h"
#include "worker/core/quant/bf16.h"
#include "worker/core/quant/moment_table.h"

namespace coat::gpu_test {
namespace {

using kernels::AdamWArgs;
using kernels::AdamWErrors;
using kernels::AdamWTensor;
using kernels::ErrorSums;
using AdamWTest = GpuTest;

using Bytes = std::vector<std::uint8_t>;

// A moment's data on both sides, of zeros.
struct Moment {
  Moment(const MomentFormat& format, std::int64_t elements, std::size_t misalignment)
      : codes(zeros(elements * (format.is_quantized() ? 1 : 4)), misalignment),
        amax(zeros(format.groups(elements) * bytes_of(format.amax_format))),
        row(Bytes(static_cast<std::size_t>(format.stores_row() ? format.groups(elements) : 0), kLastRow)) {}
  static Bytes zeros(std::int64_t bytes) { return Bytes(static_cast<std::size_t>(bytes), 0); }
  kernels::MomentData host() { return {codes.host(), amax.host(), row.host()}; }
  kernels::MomentData device() { return {codes.device(), amax.device(), row.device()}; }
  Paired<std::uint8_t> codes, amax, row;
};

// What a step is made of.
struct Formats {
  MomentFormat m, v;
  WeightFormat weights = WeightFormat::kFp32;
  Format gradient = Format::kFp32;
};

// Values as they are stored in FP32 or BF16.
Bytes stored(const std::vector<float>& contents, Format format) {
  Bytes bytes(contents.size() * static_cast<std::size_t>(bytes_of(format)));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const std::uint16_t code = encode_bf16(contents[i]);
    const void* from = format == Format::kFp32 ? static_cast<const void*>(&contents[i]) : &code;
    std::memcpy(bytes.data() + i * static_cast<std::size_t>(bytes_of(format)), from,
                static_cast<std::size_t>(bytes_of(format)));
  }
  return bytes;
}

Format value_format(WeightFormat weights) {
  return weights == WeightFormat::kFp32 ? Format::kFp32 : Format::kBf16;
}

struct Tensor {
  // `misalignment` in elements.
  Tensor(const Formats& formats, std::int64_t size, std::uint32_t number, std::size_t misalignment)
      : gradient_format(formats.gradient),
        elements(size),
        value(stored(values(size, Fill::kSpread, number), value_format(formats.weights)),
              misalignment * bytes(value_format(formats.weights))),
        residual(Moment::zeros(formats.weights == WeightFormat::kBf16Residual ? size : 0), misalignment),
        gradient(Moment::zeros(size * bytes_of(formats.gradient)), misalignment * bytes(formats.gradient)),
        m(formats.m, size, misalignment * (formats.m.is_quantized() ? 1 : 4)),
        v(formats.v, size, misalignment * (formats.v.is_quantized() ? 1 : 4)),
        id(number) {}
  static std::size_t bytes(Format format) { return static_cast<std::size_t>(bytes_of(format)); }

  // All finite: which NaN comes of one that is not differs between devices.
  void new_gradient(Fill fill, std::uint64_t seed) {
    std::vector<float> numbers = values(elements, fill, seed + 1000 * id);
    for (float& number : numbers) number = std::isfinite(number) ? number : 1e30f;
    const Bytes fresh = stored(numbers, gradient_format);
    std::copy(fresh.begin(), fresh.end(), gradient.host());
    gradient.upload();
  }
  AdamWTensor view(bool on_device) {
    const auto at = [on_device](Paired<std::uint8_t>& data) {
      return on_device ? data.device() : data.host();
    };
    return {.value = at(value),
            .residual = reinterpret_cast<std::int8_t*>(residual.count() > 0 ? at(residual) : nullptr),
            .gradient = at(gradient),
            .elements = elements,
            .m = on_device ? m.device() : m.host(),
            .v = on_device ? v.device() : v.host(),
            .decay = id % 2 == 0,
            .id = id,
            .first_index = 1024 * id};
  }
  void expect_same() {
    EXPECT_TRUE(same_bits(value)) << "value of tensor " << id;
    EXPECT_TRUE(same_bits(residual)) << "residual of tensor " << id;
    EXPECT_TRUE(same_bits(m.codes)) << "m of tensor " << id;
    EXPECT_TRUE(same_bits(m.amax)) << "m's amax of tensor " << id;
    EXPECT_TRUE(same_bits(m.row)) << "m's rows of tensor " << id;
    EXPECT_TRUE(same_bits(v.codes)) << "v of tensor " << id;
    EXPECT_TRUE(same_bits(v.amax)) << "v's amax of tensor " << id;
    EXPECT_TRUE(same_bits(v.row)) << "v's rows of tensor " << id;
  }

  Format gradient_format;
  std::int64_t elements;
  Paired<std::uint8_t> value, residual, gradient;
  Moment m, v;
  std::uint32_t id;
};

class Model {
 public:
  Model(const Formats& formats, const std::vector<std::int64_t>& sizes, std::size_t misalignment = 0) {
    args_.moment1 = formats.m;
    args_.moment2 = formats.v;
    args_.weights = formats.weights;
    args_.gradient = formats.gradient;
    args_.learning_rate = 1e-3f;
    args_.beta1 = 0.9f;
    args_.beta2 = 0.95f;
    args_.eps = 1e-8f;
    args_.weight_decay = 0.1f;
    args_.seed = 0x123456789ABCDEFu;
    for (const std::int64_t size : sizes) {
      tensors_.push_back(std::make_unique<Tensor>(
          formats, size, static_cast<std::uint32_t>(tensors_.size() + 1), misalignment));
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
      host.tensors.push_back(tensor->view(false));
      device.tensors.push_back(tensor->view(true));
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

MomentFormat moment(MomentCode code, int group, Rounding rounding) {
  return moment_format(code, /*expand=*/true, group, rounding);
}
MomentFormat stochastic(MomentCode code) { return moment(code, 128, Rounding::kStochastic); }

const std::vector<std::int64_t> kSizes = {1, 127, 128, 129, 5120, 20003, 4096 * 16 + 4, 3};
constexpr WeightFormat kWeights[] = {WeightFormat::kFp32, WeightFormat::kBf16Stochastic,
                                     WeightFormat::kBf16Residual};
constexpr Format kGradients[] = {Format::kFp32, Format::kBf16};

// Those with a version of their own.
const std::vector<Formats> kFast = {
    {stochastic(MomentCode::kE4M3), stochastic(MomentCode::kE4M3)},
    {stochastic(MomentCode::kOctave8), stochastic(MomentCode::kOctave8Unsigned)},
    {stochastic(MomentCode::kE4M3), stochastic(MomentCode::kOctave8Unsigned)},
    {moment(MomentCode::kE4M3, 128, Rounding::kNearestEven),
     moment(MomentCode::kE4M3, 128, Rounding::kNearestEven)}};

const std::vector<Formats> kOthers = {{MomentFormat{}, MomentFormat{}},
                                      {MomentFormat{}, stochastic(MomentCode::kE4M3)},
                                      {moment(MomentCode::kE4M3, 16, Rounding::kStochastic),
                                       moment(MomentCode::kE4M3, 64, Rounding::kNearestEven)}};

void expect_twins_bits(const kernels::Kernels& cpu, const kernels::Kernels& cuda, const Formats& formats,
                       std::uint64_t steps = 3, Fill fill = Fill::kSpread) {
  Model model(formats, kSizes);
  for (std::uint64_t step = 1; step <= steps; ++step) model.step(cpu, cuda, step, fill);
  model.expect_same();
}

TEST_F(AdamWTest, StepsGiveTheTwinsBits) {
  for (const std::vector<Formats>& list : {kFast, kOthers}) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE("formats " + std::to_string(i));
      expect_twins_bits(cpu(), cuda(), list[i], 6);
    }
  }
}

TEST_F(AdamWTest, AllWeightsAndGradients) {
  for (Formats formats : kFast) {
    for (const WeightFormat weights : kWeights) {
      for (const Format gradient : kGradients) {
        SCOPED_TRACE("weights " + std::to_string(static_cast<int>(weights)) + ", gradients " +
                     name_of(gradient));
        formats.weights = weights;
        formats.gradient = gradient;
        expect_twins_bits(cpu(), cuda(), formats);
        Formats mixed = formats;  // roundings of the two moments: no version of its own
        mixed.m.rounding =
            mixed.v.rounding == Rounding::kStochastic ? Rounding::kNearestEven : Rounding::kStochastic;
        expect_twins_bits(cpu(), cuda(), mixed);
      }
    }
  }
}

// Every code, group and rounding, plain and expanded, with amax in FP32 and BF16.
TEST_F(AdamWTest, AllMomentFormats) {
  const std::pair<MomentCode, MomentCode> codes[] = {
      {MomentCode::kE4M3, MomentCode::kE4M3},       {MomentCode::kE5M2, MomentCode::kE5M2},
      {MomentCode::kDe8, MomentCode::kDe8Unsigned}, {MomentCode::kE4M3, MomentCode::kLog255},
      {MomentCode::kSoftsign8, MomentCode::kSqrt8}, {MomentCode::kOctave8, MomentCode::kOctave8Unsigned}};
  constexpr int kGroups[] = {4, 16, 32, 64, 128, 256, 512, 1024};
  int turn = 0;
  for (const auto& [m, v] : codes) {
    for (const bool expand : {false, true}) {
      for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
        for (std::size_t group = 0; group < std::size(kGroups); ++group, ++turn) {
          // The other moment's group is another.
          Formats formats{moment_format(m, expand || always_expands(m), kGroups[group], rounding),
                          moment_format(v, expand || always_expands(v), kGroups[(group + 3) % 8], rounding),
                          kWeights[turn % 3], kGradients[turn / 3 % 2]};
          if (turn % 2 == 0) formats.m.amax_format = Format::kBf16;
          if (turn % 4 < 2) formats.v.amax_format = Format::kBf16;
          SCOPED_TRACE(std::string(name_of(m)) + " and " + name_of(v) + ", turn " + std::to_string(turn));
          expect_twins_bits(cpu(), cuda(), formats, 2);
        }
      }
    }
  }
}

// Values that leave the range of the fast versions, among those that do not.
TEST_F(AdamWTest, SpecialGradients) {
  for (Formats formats : kFast) {
    for (const WeightFormat weights : kWeights) {
      formats.weights = weights;
      expect_twins_bits(cpu(), cuda(), formats, 2, Fill::kSpecial);
    }
  }
}

TEST_F(AdamWTest, ZeroConstantAndTinyGradients) {
  for (const Formats& formats : kFast) {
    Model model(formats, kSizes);
    std::uint64_t step = 0;
    for (const Fill fill :
         {Fill::kZeros, Fill::kConstant, Fill::kTiny, Fill::kZeros, Fill::kSpread, Fill::kZeros}) {
      model.step(cpu(), cuda(), ++step, fill);
      model.expect_same();
    }
  }
}

TEST_F(AdamWTest, MisalignedTensors) {
  for (const Formats& formats : kFast) {
    for (const std::size_t misalignment : {std::size_t{1}, std::size_t{2}}) {
      Model model(formats, {5120, 129, 7}, misalignment);
      for (std::uint64_t step = 1; step <= 3; ++step) model.step(cpu(), cuda(), step, Fill::kSpread);
      model.expect_same();
    }
  }
}

TEST_F(AdamWTest, ManyTensorsInOneLaunch) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < 300; ++i) sizes.push_back(1 + i * 37 % 2000);
  Model model(kFast[1], sizes);
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
  std::vector<Formats> list = kOthers;
  list.insert(list.end(), kFast.begin(), kFast.end());
  for (const Formats& formats : list) {
    Model model(formats, kSizes);
    AdamWErrors errors[2];
    for (std::uint64_t step = 1; step <= 2; ++step) model.step(cpu(), cuda(), step, Fill::kSpread, errors);
    model.expect_same();
    expect_same_sums(errors[0].moment1, errors[1].moment1);
    expect_same_sums(errors[0].moment2, errors[1].moment2);
    expect_same_sums(errors[0].update, errors[1].update);
  }
}

TEST_F(AdamWTest, AStepWhoseScaleIsNanIsSkipped) {
  for (const Formats& formats : {kFast[0], kFast[1], kOthers[0]}) {
    Model model(formats, kSizes);
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
  args.moment2 = kFast[0].v;
  EXPECT_THROW(cuda().adamw(args, {}), std::logic_error) << "no negative values";
  args.moment1 = moment(MomentCode::kE4M3, 96, Rounding::kNearestEven);
  EXPECT_THROW(cuda().adamw(args, {}), UnsupportedError);
  args.moment1 = kFast[0].m;
  EXPECT_NO_THROW(cuda().adamw(args, {})) << "no tensors: nothing to do";
}

}  // namespace
}  // namespace coat::gpu_test
