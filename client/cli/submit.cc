// submit and estimate: commands that read a job file.
#include <cerrno>
#include <cstring>
#include <fstream>

#include "client/cli/commands.h"
#include "client/cli/describe.h"
#include "client/cli/human.h"
#include "proto/common/byte_size.h"
#include "proto/common/spec_conversion.h"

namespace coat::cli {
namespace {

// A little more than a job file may have, so that the reader can say that it is too large.
constexpr std::size_t kMaxRead = (1 << 20) + 1;

std::string read_stream(std::istream& in) {
  std::string text(kMaxRead, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

Result<v1::JobSpec> read_spec(Context& context, const std::string& file, const Overrides& set) {
  if (file == "-") return parse_yaml(read_stream(context.terminal.in), "standard input", set);
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::string text;
  if (in) text = read_stream(in);
  if (!in.is_open() || in.bad() || (text.empty() && errno != 0)) {
    return invalid_argument(
        {{file, std::string("cannot be read: ") + std::strerror(errno), "name a readable job file"}});
  }
  return parse_yaml(text, file, set);
}

void tell_estimate(std::ostream& err, const v1::Estimate& estimate) {
  err << "memory: " << bytes_text(estimate.memory().total_bytes()) << " with recipe " << estimate.recipe()
      << ", " << bytes_text(estimate.memory_bf16().total_bytes()) << " with bf16; "
      << count_text(static_cast<double>(estimate.parameters())) << " parameters, "
      << count_text(static_cast<double>(estimate.data_tokens())) << " tokens of data\n";
}

void print_submitted(Context& context, const v1::Job& job) {
  std::ostream& out = context.terminal.out;
  if (context.output.format == Format::kJson || context.output.format == Format::kYaml) {
    print_message(out, context.output.format, job);
  } else {
    out << short_name(job.name()) << '\n';
  }
  out.flush();
}

}  // namespace

ExitCode submit(Context& context, const SubmitArguments& arguments) {
  auto spec = read_spec(context, arguments.file, arguments.set);
  if (!spec.ok()) return report(context, spec.error());
  std::ostream& err = context.terminal.err;
  auto checked = context.client.validate(spec.value());
  if (!checked.ok()) return report(context, checked.error());
  if (checked.value().has_estimate()) tell_estimate(err, checked.value().estimate());
  if (arguments.dry_run) {
    err << (checked.value().has_estimate()
                ? "the job is sound; nothing was submitted\n"
                : "the file is sound; no worker is connected to look at data and memory; "
                  "nothing was submitted\n");
    const Format format = context.output.format;
    if (format == Format::kJson || format == Format::kYaml)
      print_message(context.terminal.out, format, checked.value());
    return ExitCode::kOk;
  }
  auto job = context.client.submit(spec.value(), arguments.request_id);
  if (!job.ok()) return report(context, job.error());
  print_submitted(context, job.value());
  if (arguments.wait) return follow(context, err, context.terminal.err_is_tty, job.value(), std::nullopt);
  if (context.output.format == Format::kTable || context.output.format == Format::kWide) {
    err << "submitted; see it run: " << context.command << " watch " << short_name(job.value().name())
        << "\n";
  }
  return ExitCode::kOk;
}

ExitCode estimate(Context& context, const EstimateArguments& arguments) {
  auto spec = read_spec(context, arguments.file, arguments.set);
  if (!spec.ok()) return report(context, spec.error());
  auto estimate = context.client.estimate(spec.value());
  if (!estimate.ok()) return report(context, estimate.error());
  const v1::Estimate& answer = estimate.value();
  std::ostream& out = context.terminal.out;
  if (context.output.format == Format::kJson || context.output.format == Format::kYaml) {
    print_message(out, context.output.format, answer);
    return ExitCode::kOk;
  }
  out << count_text(static_cast<double>(answer.parameters())) << " parameters, "
      << thousands_text(answer.data_tokens()) << " tokens of data, "
      << thousands_text(static_cast<std::int64_t>(answer.saved_bytes_per_token_per_layer()))
      << " bytes saved a token and layer\n\n";
  print_memory(out, answer.recipe(), answer.memory(), answer.memory_bf16());
  out << "\n"
      << (answer.fits() ? "fits: the largest device of " : "does not fit: the largest device of ")
      << short_name(answer.worker()) << " holds " << bytes_text(answer.device_memory_bytes()) << "\n";
  return ExitCode::kOk;
}

}  // namespace coat::cli
