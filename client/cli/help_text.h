// What `--help` of each command adds to its options: how it is used, by example.
#pragma once

namespace coat::cli {

inline constexpr const char* kHelp = R"(
From file to result:
  coat submit job.yaml --wait            submit, see it run, end with its exit code
  coat list --state RUNNING,PENDING      what is there, and why it waits
  coat describe JOB                      loss, memory beside bf16, quantization error, a sample of text
Each command has examples: coat submit --help

Exit codes: 0 done or SUCCEEDED, 1 job FAILED, 2 wrong usage or job file, 3 job CANCELLED, 4 not found,
  5 service unreachable, 6 refused, 124 --timeout passed, 130 interrupted)";

inline constexpr const char* kSubmitHelp = R"(
Examples:
  coat submit job.yaml                                  prints the job's id
  coat submit job.yaml --wait                           shows its progress and ends with its exit code
  coat submit job.yaml --set training.steps=400 --set optimizer.learning_rate=1e-3
  coat submit job.yaml --dry-run                        every check, also of data and memory, and nothing else
  sed s/STEPS/100/ template.yaml | coat submit -        from standard input
  id=$(coat submit job.yaml -o name) && coat wait "$id"

The smallest job file:
  name: my-job
  data: {path: /data/text.txt}
  training: {steps: 100}

With --request-id ID a submit may be repeated, also after an error: the same ID makes one job.)";

inline constexpr const char* kEstimateHelp = R"(
A worker reads the data and adds up the memory that the job would hold, by category, beside the recipe bf16.
Examples:
  coat estimate job.yaml
  coat estimate job.yaml --set training.micro_batch=16 -o json)";

inline constexpr const char* kGetHelp = R"(
Examples:
  coat get JOB
  coat get JOB -o yaml                   everything that the service knows of it
  coat get JOB -o json | jq -r .state)";

inline constexpr const char* kListHelp = R"(
Examples:
  coat list                              the newest 50
  coat list --state PENDING              with the reason why each waits
  coat list --label team=vision --all -o name | xargs coat cancel)";

inline constexpr const char* kDescribeHelp = R"(
Loss first and last beside the unigram entropy of the text, memory beside bf16 by category, quantization error by
tensor class, a sample of text, attempts, where files lie, and every event.
Example:
  coat describe quickstart-x7k2p)";

inline constexpr const char* kWorkersHelp = R"(
Examples:
  coat workers                           devices, what runs on them, when each was last heard of
  coat workers -o wide)";

inline constexpr const char* kWatchHelp = R"(
Ends with the job's exit code. Ctrl-C ends the watching, not the job.
Examples:
  coat watch JOB                         a bar on a terminal, lines elsewhere
  coat watch JOB -o json                 each change as a line of JSON
  coat watch JOB --timeout 10m           exit code 124 when it has not ended by then)";

inline constexpr const char* kLogsHelp = R"(
Examples:
  coat logs JOB                          of its latest attempt, up to now
  coat logs JOB -f                       to its last byte, over all attempts to come
  coat logs JOB --attempt 1 --offset 4096)";

inline constexpr const char* kCancelHelp = R"(
A pending job is CANCELLED at once; a running one saves a checkpoint first.
Examples:
  coat cancel JOB
  coat cancel JOB && coat wait JOB       until its devices are free (exit code 3)
  coat list --state PENDING -o name | xargs coat cancel)";

inline constexpr const char* kWaitHelp = R"(
Ends with the job's exit code.
Examples:
  coat wait JOB && echo "it succeeded"
  coat wait JOB --timeout 1h30m          exit code 124 when it has not ended by then)";

}  // namespace coat::cli
