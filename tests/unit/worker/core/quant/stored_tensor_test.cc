#include "worker/core/quant/stored_tensor.h"

#include <limits>
#include <stdexcept>
#include <string>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "worker/core/quant/scale.h"

namespace coat {
namespace {

TEST(FormatTest, LargestValuesAndNames) {
  EXPECT_EQ(max_value(Format::kE4M3), 448.0f);
  EXPECT_EQ(max_value(Format::kE5M2), 57344.0f);
  EXPECT_EQ(max_value(Format::kFp32), std::numeric_limits<float>::max());
  EXPECT_EQ(max_value(Format::kBf16), 0x1.FEp127f);
  EXPECT_EQ(std::string(name_of(Format::kFp32)) + name_of(Format::kBf16) + name_of(Format::kE4M3) +
                name_of(Format::kE5M2),
            "fp32bf16e4m3e5m2");
}

TEST(ScaleTest, IsFiniteForZeroAndInvariantToPowersOfTwo) {
  EXPECT_EQ(scale_from_amax(0.0f, 448.0f), kMinScale);
  EXPECT_EQ(stored_scale(kMinScale, ScaleFormat::kBf16), kMinScale);
  EXPECT_TRUE(std::isfinite(1.0f / kMinScale));
  for (const float amax : {1.0f, 3.7f, 0.1f}) {
    EXPECT_EQ(scale_from_amax(amax * 0x1p-50f, 448.0f), scale_from_amax(amax, 448.0f) * 0x1p-50f);
  }
  EXPECT_TRUE(std::isnan(scale_from_amax(std::numeric_limits<float>::quiet_NaN(), 448.0f)));
  EXPECT_TRUE(std::isinf(scale_from_amax(std::numeric_limits<float>::infinity(), 448.0f)));
}

TEST(StoredTensorTest, BytesArePayloadAndScales) {
  const TensorFormat grouped{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16};
  StoredTensor tensor = empty_stored(grouped, 5, 33, at::kCPU);
  EXPECT_EQ(tensor.bytes(), 5 * 33 + 5 * 3 * 2);
  EXPECT_EQ(tensor.bytes(), grouped.total_bytes(5, 33));
  EXPECT_EQ(tensor.data.scalar_type(), at::kByte);
  EXPECT_EQ(tensor.scale.scalar_type(), at::kBFloat16);
  const Matrix view = tensor.view();
  EXPECT_EQ(view.data, tensor.data.data_ptr());
  EXPECT_EQ(view.scale, tensor.scale.data_ptr());
  EXPECT_EQ(view.rows, 5);
  EXPECT_EQ(view.cols, 33);

  const TensorFormat whole{Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kFp32};
  EXPECT_EQ(empty_stored(whole, 7, 9, at::kCPU).bytes(), 63 + 4);
  EXPECT_EQ(empty_stored({}, 7, 9, at::kCPU).bytes(), 126);
  EXPECT_EQ(StoredTensor{}.bytes(), 0);
  EXPECT_EQ(StoredTensor{}.view().data, nullptr);
}

TEST(StoredTensorTest, AsStoredSharesMemory) {
  const at::Tensor values = at::ones({3, 4}, at::kBFloat16);
  const StoredTensor stored = as_stored(values);
  EXPECT_EQ(stored.view().data, values.const_data_ptr());
  EXPECT_EQ(stored.format, TensorFormat{});
  EXPECT_EQ(as_stored(at::ones({3, 4})).format.format, Format::kFp32);
  EXPECT_THROW(as_stored(at::ones({3, 4}).t()), std::logic_error);
  EXPECT_THROW(as_stored(at::ones({3})), std::logic_error);
  EXPECT_THROW(as_stored(at::ones({3, 4}, at::kDouble)), std::logic_error);
}

}  // namespace
}  // namespace coat
