#include "worker/core/train/sample_from.h"

#include "spec/job_spec.h"
#include "worker/core/base/error.h"
#include "worker/core/checkpoint/checkpoint_files.h"
#include "worker/core/train/checkpoint_state.h"
#include "worker/core/train/training_run.h"

namespace coat::train {
namespace {

struct Opened {
  spec::JobSpec spec;
  std::unique_ptr<LanguageModel> model;
};

// Throws checkpoint::DamagedError.
Opened open_checkpoint(checkpoint::FileSystem& files, const std::string& path, at::Device device) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(files, path);
  const spec::ParseResult parsed = spec::parse_json(manifest.spec_json);
  if (!parsed.ok()) {
    throw CheckpointError("the spec in '" + path + "' is of another version:\n" +
                          spec::format_violations(parsed.violations));
  }
  Opened opened{.spec = parsed.spec};
  opened.model = llama_factory(device)(opened.spec, kernels_for(device));
  HostViews views(parameter_tensors(opened.model->parameters()), true);
  checkpoint::read_tensors(files, path, manifest, checkpoint::kParametersFile, views.tensors());
  views.write_back();
  return opened;
}

Opened open_newest(checkpoint::FileSystem& files, const std::string& folder, at::Device device) {
  std::vector<std::string> paths;
  try {
    if (files.exists(folder + "/" + checkpoint::kManifestFile)) {
      paths.push_back(folder);
    } else {
      paths = checkpoint::list_checkpoints(files, folder);
    }
  } catch (const checkpoint::FileError& error) {
    throw CheckpointError(error.what());
  }
  if (paths.empty())
    throw CheckpointError("'" + folder + "' holds no checkpoint: name a job's checkpoint folder");
  std::string reason;
  for (const std::string& path : paths) {
    try {
      return open_checkpoint(files, path, device);
    } catch (const checkpoint::DamagedError& error) {
      if (reason.empty()) reason = error.what();
    }
  }
  throw CheckpointError("no checkpoint in '" + folder + "' is whole: " + reason);
}

}  // namespace

std::string sample_from(checkpoint::FileSystem& files, const SampleRequest& request, at::Device device) {
  Opened opened = open_newest(files, request.folder, device);
  spec::JobSpec& spec = opened.spec;
  if (!request.prompt.empty()) spec.sample.prompt = request.prompt;
  if (spec.sample.prompt.empty()) throw SpecError("prompt", "no prompt is given", "give --prompt TEXT");
  require_sample_prompt(spec);
  return sample_text(*opened.model,
                     {.prompt = spec.sample.prompt,
                      .tokens = request.tokens.value_or(spec.sample.tokens),
                      .temperature = request.temperature.value_or(spec.sample.temperature),
                      .seed = request.seed.value_or(spec.training.seed),
                      .context = spec.training.sequence_length},
                     device);
}

}  // namespace coat::train
