#include "worker/core/data/dataset.h"

#include "worker/core/base/error.h"
#include "worker/core/data/permutation.h"

namespace coat::data {
namespace {

void require_one_window(const TokenFile& file, std::int64_t sequence_length) {
  if (file.size() > sequence_length) return;
  throw DataError("data.path",
                  "'" + file.path() + "' holds " + std::to_string(file.size()) +
                      " tokens, less than one sequence of training.sequence_length + 1 = " +
                      std::to_string(sequence_length + 1),
                  "lower training.sequence_length to at most " + std::to_string(file.size() - 1) +
                      ", or name a longer file");
}

class TokenDataset : public Dataset {
 public:
  explicit TokenDataset(const TokenDatasetOptions& options)
      : options_(options), file_(options.path, options.format) {
    require_one_window(file_, options.sequence_length);
    statistics_ = file_.scan(options.vocab_size, true);
  }

  std::int64_t sequence_length() const override { return options_.sequence_length; }
  std::int64_t sequences_per_epoch() const override { return (file_.size() - 1) / options_.sequence_length; }
  const TokenStatistics& statistics() const override { return statistics_; }
  DataIdentity identity() const override { return {statistics_.file_bytes, statistics_.sha256}; }

  SequenceBatch read(std::int64_t position, std::int64_t sequences) const override {
    const std::int64_t length = options_.sequence_length;
    SequenceBatch batch{.sequences = sequences, .length = length};
    batch.tokens.reserve(static_cast<std::size_t>(sequences * length));
    batch.targets.reserve(static_cast<std::size_t>(sequences * length));
    std::vector<std::int32_t> window(static_cast<std::size_t>(length + 1));
    for (std::int64_t i = 0; i < sequences; ++i) {
      file_.read(window_at(position + i) * length, length + 1, options_.vocab_size, window.data());
      batch.tokens.insert(batch.tokens.end(), window.begin(), window.end() - 1);
      batch.targets.insert(batch.targets.end(), window.begin() + 1, window.end());
    }
    return batch;
  }

 private:
  std::int64_t window_at(std::int64_t position) const {
    const auto count = static_cast<std::uint64_t>(sequences_per_epoch());
    const auto at = static_cast<std::uint64_t>(position);
    return static_cast<std::int64_t>(Permutation(count, options_.seed, at / count)(at % count));
  }

  TokenDatasetOptions options_;
  TokenFile file_;
  TokenStatistics statistics_;
};

}  // namespace

std::int64_t SequenceBatch::counting_tokens() const {
  if (mask.empty()) return sequences * length;
  std::int64_t count = 0;
  for (const float value : mask) count += value != 0.0F ? 1 : 0;
  return count;
}

std::unique_ptr<Dataset> open_token_dataset(const TokenDatasetOptions& options) {
  return std::make_unique<TokenDataset>(options);
}

TokenStatistics check_token_data(const TokenDatasetOptions& options) {
  const TokenFile file(options.path, options.format);
  require_one_window(file, options.sequence_length);
  return file.scan(options.vocab_size, false);
}

}  // namespace coat::data
