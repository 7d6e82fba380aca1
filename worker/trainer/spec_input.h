// What a trainer is given, checked: the spec, the device, the machine.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "spec/job_spec.h"

namespace coat::trainer {

// The spec of the file, valid, and possible on `device`. Every violation goes to standard error as "field:
// message; fix"; the SpecError that is thrown then holds them all, and the first one's field and fix.
spec::JobSpec read_spec(const std::string& path, at::Device device);

// "cpu", "cpu:0", "cuda:3". Throws SpecError of field --device.
at::Device parse_device(const std::string& text);

// AVX2, FMA and F16C, which the CPU kernels are compiled for. Throws DeviceFaultError naming what is missing.
void require_cpu_features();

}  // namespace coat::trainer
