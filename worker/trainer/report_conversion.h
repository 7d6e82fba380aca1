// The core's reports as messages of the protocol.
#pragma once

#include "worker/core/train/report.h"
#include "worker/protocol/messages.h"

namespace coat::trainer {

protocol::MemoryBreakdown to_message(const MemoryLedger& ledger);
protocol::Estimate to_message(const train::TrainingEstimate& estimate, std::int64_t device_memory_bytes,
                              std::int64_t data_tokens);
protocol::Started to_message(const train::StartReport& report);
protocol::Step to_message(const train::StepReport& report);
protocol::Checkpoint to_message(const train::CheckpointReport& report);
protocol::Summary to_message(const train::SummaryReport& report);

}  // namespace coat::trainer
