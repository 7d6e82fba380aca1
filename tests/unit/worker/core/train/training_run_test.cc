#include "worker/core/train/training_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>

#include "tests/unit/worker/core/train/bigram_model.h"
#include "tests/unit/worker/core/train/fixture.h"
#include "worker/core/base/error.h"
#include "worker/core/train/sample_from.h"

namespace coat::train {
namespace {

using coat::testing::read_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TrainingRunTest : public ::testing::Test {
 protected:
  TrainingRunTest() : spec_(small_spec(folder_.write("text", small_text(20000)), "coat")) {}

  // The bigram model, which `prepare_model` may rig.
  ModelFactory bigram() {
    return [this](const spec::JobSpec& spec, const kernels::Kernels&) {
      auto model = std::make_unique<BigramModel>(spec.model.vocab_size);
      if (prepare_model) prepare_model(*model);
      return model;
    };
  }
  RunOptions options(const std::string& name, bool resume = false) {
    return {.spec = spec_, .checkpoint_folder = folder_ / name, .resume = resume};
  }
  // A run from start to end; the observer keeps what it told.
  RunEnd run(const RunOptions& options, Recorder& recorder, const ModelFactory& factory) {
    TrainingRun training(options, factory, checkpoint::real_file_system(), recorder, control_);
    const RunEnd end = training.run();
    summary_ = training.summary();
    return end;
  }
  std::string manifest_part(const std::string& path, const std::string& from) {
    const std::string text = read_file(path + "/manifest.json");
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    return text.substr(at, text.find('\n', at) - at);
  }
  void expect_same_state(const std::string& a, const std::string& b) {
    EXPECT_EQ(read_file(a + "/parameters.bin"), read_file(b + "/parameters.bin"));
    EXPECT_EQ(read_file(a + "/optimizer.bin"), read_file(b + "/optimizer.bin"));
  }

  coat::testing::TemporaryFolder folder_;
  spec::JobSpec spec_;
  RunControl control_;
  std::optional<SummaryReport> summary_;
  std::function<void(BigramModel&)> prepare_model;
};

TEST_F(TrainingRunTest, TellsItsWholeCourse) {
  spec_.checkpoint.interval_steps = 5;
  spec_.sample = {.prompt = "th", .tokens = 3, .temperature = 0};
  Recorder recorder;
  EXPECT_EQ(run(options("job"), recorder, bigram()), RunEnd::kDone);
  ASSERT_THAT(recorder.starts, SizeIs(1));
  EXPECT_EQ(recorder.starts[0].total_steps, 12);
  EXPECT_EQ(recorder.starts[0].resume_step, 0);
  EXPECT_GT(recorder.starts[0].unigram_entropy, 2);
  EXPECT_EQ(recorder.starts[0].data_tokens,
            static_cast<std::int64_t>(std::filesystem::file_size(folder_ / "text")));
  ASSERT_THAT(recorder.steps, SizeIs(12));
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(recorder.steps[i].step, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(recorder.steps[i].tokens, static_cast<std::int64_t>(i + 1) * 4 * 2 * 32);
    EXPECT_GT(recorder.steps[i].tokens_per_second, 0);
    EXPECT_GT(recorder.steps[i].memory_reserved_bytes, 0);
  }
  EXPECT_EQ(recorder.steps.back().remaining_seconds, 0);
  EXPECT_NEAR(recorder.steps[1].learning_rate, 3e-3 * 2 / 4, 1e-12);
  std::vector<std::int64_t> saved;
  for (const CheckpointReport& report : recorder.checkpoints) saved.push_back(report.step);
  EXPECT_THAT(saved, ElementsAre(5, 10, 12));
  ASSERT_TRUE(summary_);
  EXPECT_EQ(summary_->first_loss, recorder.steps[0].loss);
  EXPECT_EQ(summary_->last_loss, recorder.steps[11].loss);  // a tenth of 12 is one step
  EXPECT_EQ(summary_->steps, 12);
  EXPECT_EQ(summary_->checkpoint_step, 12);
  EXPECT_EQ(summary_->checkpoint_path, folder_ / "job/step-00000012");
  EXPECT_THAT(summary_->quantization, SizeIs(4));
  EXPECT_EQ(summary_->sample.substr(0, 2), "th");
  EXPECT_GE(summary_->sample.size(), 5u);
  EXPECT_THAT(recorder.warnings, IsEmpty());
}

TEST_F(TrainingRunTest, TheLastLossIsTheMeanOfTheLastTenth) {
  spec_.training.steps = 35;
  Recorder recorder;
  run(options("job"), recorder, bigram());
  const std::vector<double> losses = recorder.losses();
  EXPECT_DOUBLE_EQ(summary_->last_loss, std::accumulate(losses.end() - 3, losses.end(), 0.0) / 3);
  EXPECT_LT(summary_->last_loss, summary_->first_loss);
}

// N steps, stop, N steps more: the bits of 2N steps, wherever the stop falls within the step.
TEST_F(TrainingRunTest, AStoppedAndResumedRunIsTheUninterruptedOne) {
  Recorder whole;
  run(options("whole"), whole, bigram());
  for (const int stop_at : {0, 9, 10, 11}) {
    const std::string name = "part" + std::to_string(stop_at);
    Recorder first;
    RunControl stop;
    prepare_model = [&](BigramModel& model) {
      model.after_backward = [&](int call) {
        if (call == stop_at) stop.request_stop();
      };
    };
    TrainingRun stopped(options(name), bigram(), checkpoint::real_file_system(), first, stop);
    EXPECT_EQ(stopped.run(), RunEnd::kStopped);
    const auto complete = static_cast<std::size_t>(stop_at / 2);  // a step has two micro-batches
    EXPECT_THAT(first.steps, SizeIs(complete));
    EXPECT_THAT(first.checkpoints, SizeIs(complete > 0 ? 1 : 0));
    prepare_model = nullptr;
    Recorder second;
    RunControl fresh;
    TrainingRun resumed(options(name, true), bigram(), checkpoint::real_file_system(), second, fresh);
    EXPECT_EQ(resumed.run(), RunEnd::kDone);
    EXPECT_EQ(second.starts[0].resume_step, static_cast<std::int64_t>(complete));
    std::vector<double> losses = first.losses();
    for (const double loss : second.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses());
    EXPECT_EQ(resumed.summary()->first_loss, summary_->first_loss);
    EXPECT_EQ(resumed.summary()->last_loss, summary_->last_loss);
    expect_same_state(folder_ / (name + "/step-00000012"), folder_ / "whole/step-00000012");
    EXPECT_EQ(manifest_part(folder_ / (name + "/step-00000012"), "\"data_position\""),
              manifest_part(folder_ / "whole/step-00000012", "\"data_position\""));
  }
}

TEST_F(TrainingRunTest, ACheckpointOnRequestIsSavedOnceAndTheRunGoesOn) {
  prepare_model = [&](BigramModel& model) {
    model.after_backward = [&](int call) {
      if (call == 6) control_.request_checkpoint();  // in step 4
    };
  };
  Recorder recorder;
  EXPECT_EQ(run(options("job"), recorder, bigram()), RunEnd::kDone);
  ASSERT_THAT(recorder.checkpoints, SizeIs(2));
  EXPECT_EQ(recorder.checkpoints[0].step, 4);
  EXPECT_EQ(recorder.checkpoints[1].step, 12);
}

TEST_F(TrainingRunTest, ARunThatWasDoneIsDoneAgainWithTheSameFigures) {
  Recorder first;
  run(options("job"), first, bigram());
  const SummaryReport before = *summary_;
  Recorder second;
  EXPECT_EQ(run(options("job", true), second, bigram()), RunEnd::kDone);
  EXPECT_THAT(second.steps, IsEmpty());
  EXPECT_THAT(second.checkpoints, IsEmpty());
  EXPECT_EQ(summary_->last_loss, before.last_loss);
  EXPECT_EQ(summary_->tokens, before.tokens);
  EXPECT_EQ(summary_->checkpoint_path, before.checkpoint_path);
}

TEST_F(TrainingRunTest, TheThirdSkippedStepInARowEndsTheRun) {
  const auto spoil = [&](std::function<bool(int)> when) {
    prepare_model = [when](BigramModel& model) {
      model.after_backward = [&model, when](int call) {
        if (when(call)) model.parameters().all()[0]->gradient.mutable_data_ptr<float>()[0] = NAN;
      };
    };
  };
  spec_.training.accumulation_steps = 1;
  spoil([](int call) { return call == 2 || call == 3 || call == 5 || call == 6; });
  Recorder tolerant;
  EXPECT_EQ(run(options("two"), tolerant, bigram()), RunEnd::kDone);
  EXPECT_EQ(tolerant.steps.back().nonfinite_steps, 4);
  spoil([](int call) { return call >= 4; });
  Recorder strict;
  EXPECT_THAT(reason<NonFiniteLossError>([&] { run(options("three"), strict, bigram()); }),
              AllOf(HasSubstr("3 steps in a row"), HasSubstr("step 7")));
  EXPECT_THAT(strict.steps, SizeIs(7));
}

// The count of skipped steps in a row goes through a checkpoint, too.
TEST_F(TrainingRunTest, SkippedStepsInARowAreCountedOverAResume) {
  spec_.training.accumulation_steps = 1;
  prepare_model = [&](BigramModel& model) {
    model.after_backward = [&](int call) {
      model.parameters().all()[0]->gradient.mutable_data_ptr<float>()[0] = NAN;
      if (call == 2) control_.request_stop();
    };
  };
  Recorder first;
  EXPECT_EQ(run(options("job"), first, bigram()), RunEnd::kStopped);
  EXPECT_THAT(first.steps, SizeIs(2));
  RunControl fresh;
  Recorder second;
  TrainingRun again(options("job", true), bigram(), checkpoint::real_file_system(), second, fresh);
  EXPECT_THAT(reason<NonFiniteLossError>([&] { again.run(); }), HasSubstr("step 3"));
}

TEST_F(TrainingRunTest, AUsedFolderNeedsResume) {
  Recorder recorder;
  run(options("job"), recorder, bigram());
  EXPECT_THAT(reason<CheckpointError>([&] { run(options("job"), recorder, bigram()); }),
              AllOf(HasSubstr("already holds checkpoints"), HasSubstr("--resume")));
}

TEST_F(TrainingRunTest, WhatChangedSinceTheCheckpointIsNamed) {
  Recorder recorder;
  run(options("job"), recorder, bigram());
  const spec::JobSpec original = spec_;
  const auto resume_with = [&](const std::function<void(spec::JobSpec&)>& change) {
    spec_ = original;
    change(spec_);
    return reason<CheckpointError>([&] { run(options("job", true), recorder, bigram()); });
  };
  EXPECT_THAT(resume_with([](spec::JobSpec& spec) { spec.model.rope_theta = 5000; }),
              AllOf(HasSubstr("model.rope_theta = 10000"), HasSubstr("asks for 5000")));
  EXPECT_THAT(resume_with([](spec::JobSpec& spec) { spec.recipe = "bf16"; }), HasSubstr("recipe = coat"));
  EXPECT_THAT(resume_with([](spec::JobSpec& spec) { spec.training.seed = 8; }),
              HasSubstr("training.seed = 7"));
  EXPECT_THAT(resume_with([](spec::JobSpec& spec) { spec.training.sequence_length = 16; }),
              HasSubstr("training.sequence_length = 32"));
  EXPECT_THAT(resume_with([](spec::JobSpec& spec) { spec.training.steps = 11; }),
              AllOf(HasSubstr("is of step 12"), HasSubstr("training.steps = 11")));
  // What may change.
  EXPECT_EQ(resume_with([](spec::JobSpec& spec) {
              spec.training.steps = 14;
              spec.training.micro_batch = 2;
              spec.optimizer.learning_rate = 1e-4;
            }),
            "none");
  EXPECT_EQ(recorder.steps.back().step, 14);
}

TEST_F(TrainingRunTest, AnotherDataFileIsAnErrorOfTheData) {
  Recorder recorder;
  run(options("job"), recorder, bigram());
  spec_.training.steps = 20;
  std::string text = read_file(folder_ / "text");
  text[100] = text[100] == 'a' ? 'b' : 'a';
  folder_.write("text", text);
  EXPECT_THAT(reason<DataError>([&] { run(options("job", true), recorder, bigram()); }),
              HasSubstr("data.sha256"));
}

TEST_F(TrainingRunTest, RefusesBeforeAnythingIsMade) {
  const auto refused = [&](auto change) {
    RunOptions changed = options("refused");
    change(changed);
    Recorder recorder;
    TrainingRun training(changed, bigram(), checkpoint::real_file_system(), recorder, control_);
    EXPECT_ANY_THROW(training.run());
    EXPECT_FALSE(training.summary()) << "nothing was trained";
    EXPECT_THAT(recorder.starts, IsEmpty());
  };
  refused([](RunOptions& changed) { changed.memory_bytes = 1000; });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
  refused([](RunOptions& changed) { changed.spec.data.path += ".missing"; });
  refused([](RunOptions& changed) { changed.spec.sample.prompt = "\xC3\xA4"; });
  refused([](RunOptions& changed) {
    changed.spec.sample.prompt = "a";
    changed.spec.data.format = "uint16";
  });
  refused([](RunOptions& changed) { changed.spec.model.vocab_size = 64; });
  refused([](RunOptions& changed) { changed.spec.training.sequence_length = 100000; });
}

TEST_F(TrainingRunTest, ADamagedNewestCheckpointIsToldAndSkipped) {
  spec_.checkpoint.interval_steps = 6;
  Recorder whole;
  run(options("job"), whole, bigram());
  std::filesystem::copy(folder_ / "job/step-00000012", folder_ / "good",
                        std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(folder_ / "job/step-00000012/parameters.bin", 10);
  Recorder recorder;
  EXPECT_EQ(run(options("job", true), recorder, bigram()), RunEnd::kDone);
  ASSERT_THAT(recorder.warnings, SizeIs(1));
  EXPECT_THAT(recorder.warnings[0], HasSubstr("step-00000012/parameters.bin"));
  EXPECT_EQ(recorder.starts[0].resume_step, 6);
  expect_same_state(folder_ / "job/step-00000012", folder_ / "good");
}

TEST_F(TrainingRunTest, CudaInABuildWithoutItIsNamed) {
  RunOptions cuda = options("cuda");
  cuda.device = at::Device(at::kCUDA, 0);
  Recorder recorder;
  TrainingRun training(cuda, bigram(), checkpoint::real_file_system(), recorder, control_);
  try {
    training.run();
    FAIL() << "there is no CUDA in this build";
  } catch (const SpecError& error) {
    EXPECT_EQ(error.field, "resources.device");
    EXPECT_THAT(error.fix, HasSubstr("COAT_CUDA"));
  }
}

// The real model from here on, with every recipe.
class LlamaRunTest : public TrainingRunTest, public ::testing::WithParamInterface<const char*> {
 protected:
  LlamaRunTest() { spec_.recipe = GetParam(); }
};

TEST_P(LlamaRunTest, SixAndSixStepsAreTwelveBitForBit) {
  const ModelFactory llama = llama_factory(at::kCPU);
  Recorder whole;
  run(options("whole"), whole, llama);
  RunControl control;
  // A stop asked for while step 6 is reported, as a signal would: it takes effect at the next border.
  class StopAtSix : public Recorder {
   public:
    explicit StopAtSix(RunControl& run_control) : control_(run_control) {}
    void step_done(const StepReport& report) override {
      Recorder::step_done(report);
      if (report.step == 6) control_.request_stop();
    }

   private:
    RunControl& control_;
  } stopping(control);
  TrainingRun stopped(options("part"), llama, checkpoint::real_file_system(), stopping, control);
  ASSERT_EQ(stopped.run(), RunEnd::kStopped);
  Recorder second;
  run(options("part", true), second, llama);
  EXPECT_EQ(second.starts[0].resume_step, 6);
  std::vector<double> losses = stopping.losses();
  for (const double loss : second.losses()) losses.push_back(loss);
  EXPECT_EQ(losses, whole.losses());
  expect_same_state(folder_ / "part/step-00000012", folder_ / "whole/step-00000012");
}

TEST_P(LlamaRunTest, LearnsMoreThanTheFrequenciesOfBytes) {
  spec_.training = {.steps = 150, .sequence_length = 64, .micro_batch = 8, .seed = 1};
  spec_.optimizer.learning_rate = 1e-2;
  spec_.optimizer.warmup_steps = 10;
  spec_.sample = {.prompt = "the ", .tokens = 20, .temperature = 0.5};
  Recorder recorder;
  ASSERT_EQ(run(options("job"), recorder, llama_factory(at::kCPU)), RunEnd::kDone);
  EXPECT_GT(summary_->first_loss, 4.5);  // log(128) = 4.85
  EXPECT_LT(summary_->last_loss, 0.8 * summary_->unigram_entropy);
  EXPECT_EQ(recorder.steps.back().nonfinite_steps, 0);
  for (const QuantizationFigure& figure : summary_->quantization) {
    // Half a unit in the last place, relative: 2^-4 for E4M3, 2^-3 for E5M2, 2^-9 for BF16; twice that is
    // never reached. Moments and what they give are not worse than E4M3.
    const double step = figure.format == "e5m2" ? 0x1p-3 : figure.format == "bf16" ? 0x1p-9 : 0x1p-4;
    EXPECT_GT(figure.relative_error, 0) << figure.tensor_class;
    EXPECT_LT(figure.relative_error, 2 * step) << figure.tensor_class;
  }
  const std::string sample =
      sample_from(checkpoint::real_file_system(), {.folder = folder_ / "job", .prompt = "the "}, at::kCPU);
  EXPECT_EQ(sample, summary_->sample) << "the checkpoint holds the model of the run's end";
  EXPECT_EQ(sample_from(checkpoint::real_file_system(), {.folder = folder_ / "job/step-00000150"}, at::kCPU),
            sample);
  EXPECT_NE(sample_from(checkpoint::real_file_system(), {.folder = folder_ / "job", .seed = 99}, at::kCPU),
            sample);
}

INSTANTIATE_TEST_SUITE_P(Recipes, LlamaRunTest, ::testing::Values("coat", "coat-paper", "bf16"),
                         [](const auto& suite) {
                           std::string name = suite.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_F(TrainingRunTest, SampleFromSaysWhatIsWrong) {
  checkpoint::FileSystem& files = checkpoint::real_file_system();
  EXPECT_THAT(reason<CheckpointError>([&] { sample_from(files, {.folder = folder_ / "none"}, at::kCPU); }),
              HasSubstr("none"));
  EXPECT_THAT(reason<CheckpointError>([&] { sample_from(files, {.folder = folder_.path()}, at::kCPU); }),
              HasSubstr("holds no checkpoint"));
  spec_.training.steps = 1;
  spec_.optimizer.warmup_steps = 0;
  Recorder recorder;
  run(options("job"), recorder, llama_factory(at::kCPU));
  EXPECT_THAT(reason<SpecError>([&] { sample_from(files, {.folder = folder_ / "job"}, at::kCPU); }),
              HasSubstr("no prompt"));
  std::filesystem::resize_file(folder_ / "job/step-00000001/parameters.bin", 10);
  EXPECT_THAT(reason<CheckpointError>(
                  [&] { sample_from(files, {.folder = folder_ / "job", .prompt = "a"}, at::kCPU); }),
              HasSubstr("ends after 10 of"));
}

}  // namespace
}  // namespace coat::train
