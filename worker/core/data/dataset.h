// Sequences of tokens in a fixed order, found by position alone: a run goes on from a number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/core/data/token_file.h"

namespace coat::data {

// `sequences` rows of `length` tokens in host memory, row after row.
struct SequenceBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;  // the next token of each
  std::vector<float> mask;            // 1 where the target counts; empty: all do
  std::vector<std::int64_t>
      document_borders;  // indices into tokens where a new document begins inside a row; sorted
  std::int64_t sequences = 0;
  std::int64_t length = 0;

  std::int64_t counting_tokens() const;
};

// What must be the same file for a checkpoint to go on from its position.
struct DataIdentity {
  std::int64_t bytes = 0;
  std::string sha256;
  bool operator==(const DataIdentity&) const = default;
};

// Immutable after construction; read() may be called from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t sequence_length() const = 0;
  virtual std::int64_t sequences_per_epoch() const = 0;
  virtual const TokenStatistics& statistics() const = 0;
  virtual DataIdentity identity() const = 0;
  // Sequences number position, position + 1, ... of the endless run of epochs.
  virtual SequenceBatch read(std::int64_t position, std::int64_t sequences) const = 0;
};

struct TokenDatasetOptions {
  std::string path;
  TokenFormat format = TokenFormat::kBytes;
  std::int64_t vocab_size = 256;
  std::int64_t sequence_length = 256;
  std::uint64_t seed = 1;
};

// One token file cut into windows of sequence_length + 1 tokens (the last token of one window is the first of
// the next, so each but the file's first is a target once an epoch; a shorter rest is left out). Each epoch
// is a permutation of all windows of its own, keyed by (seed, epoch). Scans the whole file. Throws DataError;
// also where the file holds less than one window.
std::unique_ptr<Dataset> open_token_dataset(const TokenDatasetOptions& options);

// The same checks without the hash, for an estimate: what open_token_dataset would refuse, this refuses.
TokenStatistics check_token_data(const TokenDatasetOptions& options);

}  // namespace coat::data
