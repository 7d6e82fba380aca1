// What a spec names, made: kernels, data and model.
#include "worker/core/base/cuda_device.h"
#include "worker/core/base/error.h"
#include "worker/core/kernels/cpu/cpu_kernels.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"
#include "worker/core/train/training_run.h"

namespace coat::train {

const kernels::Kernels& kernels_for(at::Device device) {
  if (device.is_cpu()) return kernels::cpu_kernels();
  try {
    cuda_device::use(device);
    return kernels::cuda_kernels();
  } catch (const UnsupportedError& error) {
    throw SpecError("resources.device", "device " + device.str() + ": " + error.what(),
                    "use a build with -DCOAT_CUDA=ON, or write resources.device: cpu");
  }
}

data::TokenDatasetOptions dataset_options(const spec::JobSpec& spec) {
  return {.path = spec.data.path,
          .format = data::token_format(spec.data.format),
          .vocab_size = spec.model.vocab_size,
          .sequence_length = spec.training.sequence_length,
          .seed = spec.training.seed};
}

void require_sample_prompt(const spec::JobSpec& spec) {
  if (spec.sample.prompt.empty()) return;
  if (spec.data.format != "bytes") {
    throw SpecError("sample.prompt", "a sample is text, and data.format " + spec.data.format + " has no text",
                    "leave sample.prompt out, or train on bytes");
  }
  for (const char c : spec.sample.prompt) {
    const int id = static_cast<unsigned char>(c);
    if (id < spec.model.vocab_size) continue;
    throw SpecError("sample.prompt",
                    "the prompt's byte " + std::to_string(id) + " is outside the vocabulary of " +
                        std::to_string(spec.model.vocab_size),
                    "write the prompt with bytes of the training text");
  }
}

ModelFactory llama_factory(at::Device device) {
  return [device](const spec::JobSpec& spec, const kernels::Kernels& kernels) {
    return make_llama(spec.model, recipe(spec.recipe), kernels, device, spec.training.seed);
  };
}

}  // namespace coat::train
