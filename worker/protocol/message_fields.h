// The fields of every message, once: reading and writing walk the same list, so neither can forget one.
// Internal to worker/protocol.
#pragma once

#include <type_traits>

#include "worker/protocol/messages.h"

namespace coat::protocol {

// visit(name, field) for each field of `message`, in the order in which they are written.
template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, ExpansionShare>
void for_each_field(Message& message, Visit&& visit) {
  visit("below", message.below);
  visit("share", message.share);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, QuantizationError>
void for_each_field(Message& message, Visit&& visit) {
  visit("tensor_class", message.tensor_class);
  visit("format", message.format);
  visit("relative_error", message.relative_error);
  visit("saturated_fraction", message.saturated_fraction);
  visit("underflow_fraction", message.underflow_fraction);
  visit("mean_expansion", message.mean_expansion);
  visit("expansion", message.expansion);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, MemoryBreakdown>
void for_each_field(Message& message, Visit&& visit) {
  visit("weights_bytes", message.weights_bytes);
  visit("gradients_bytes", message.gradients_bytes);
  visit("moment1_bytes", message.moment1_bytes);
  visit("moment2_bytes", message.moment2_bytes);
  visit("activations_bytes", message.activations_bytes);
  visit("workspace_bytes", message.workspace_bytes);
  visit("total_bytes", message.total_bytes);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, Estimate>
void for_each_field(Message& message, Visit&& visit) {
  visit("recipe", message.recipe);
  visit("memory", message.memory);
  visit("memory_bf16", message.memory_bf16);
  visit("parameters", message.parameters);
  visit("device_memory_bytes", message.device_memory_bytes);
  visit("fits", message.fits);
  visit("saved_bytes_per_token_per_layer", message.saved_bytes_per_token_per_layer);
  visit("data_tokens", message.data_tokens);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, Started>
void for_each_field(Message& message, Visit&& visit) {
  visit("total_steps", message.total_steps);
  visit("resume_step", message.resume_step);
  visit("unigram_entropy", message.unigram_entropy);
  visit("estimate", message.estimate);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, Step>
void for_each_field(Message& message, Visit&& visit) {
  visit("step", message.step);
  visit("loss", message.loss);
  visit("grad_norm", message.grad_norm);
  visit("learning_rate", message.learning_rate);
  visit("tokens_per_second", message.tokens_per_second);
  visit("tokens", message.tokens);
  visit("memory_bytes", message.memory_bytes);
  visit("memory_reserved_bytes", message.memory_reserved_bytes);
  visit("memory_peak_bytes", message.memory_peak_bytes);
  visit("nonfinite_steps", message.nonfinite_steps);
  visit("remaining_seconds", message.remaining_seconds);
  visit("quantization", message.quantization);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, Checkpoint>
void for_each_field(Message& message, Visit&& visit) {
  visit("step", message.step);
  visit("path", message.path);
  visit("bytes", message.bytes);
  visit("seconds", message.seconds);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, Summary>
void for_each_field(Message& message, Visit&& visit) {
  visit("first_loss", message.first_loss);
  visit("last_loss", message.last_loss);
  visit("unigram_entropy", message.unigram_entropy);
  visit("steps", message.steps);
  visit("tokens", message.tokens);
  visit("tokens_per_second", message.tokens_per_second);
  visit("wall_seconds", message.wall_seconds);
  visit("parameters", message.parameters);
  visit("memory", message.memory);
  visit("memory_bf16", message.memory_bf16);
  visit("memory_peak_bytes", message.memory_peak_bytes);
  visit("quantization", message.quantization);
  visit("sample", message.sample);
  visit("checkpoint_path", message.checkpoint_path);
  visit("checkpoint_step", message.checkpoint_step);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, Failure>
void for_each_field(Message& message, Visit&& visit) {
  visit("exit_code", message.exit_code);
  visit("message", message.message);
  visit("field", message.field);
  visit("fix", message.fix);
}

template <typename Message, typename Visit>
requires std::is_same_v<std::remove_const_t<Message>, SaveCheckpoint> ||
    std::is_same_v<std::remove_const_t<Message>, StopAfterCheckpoint>
void for_each_field(Message&, Visit&&) {}

}  // namespace coat::protocol
