#include "server/jobs/transitions.h"

#include <initializer_list>
#include <stdexcept>

namespace coat::jobs {
namespace {

template <typename State>
struct Row {
  State from;
  std::initializer_list<State> to;
};

const Row<v1::Job::State> kJobTable[] = {
    {v1::Job::PENDING, {v1::Job::RUNNING, v1::Job::CANCELLED, v1::Job::CANCELLING, v1::Job::FAILED}},
    {v1::Job::RUNNING, {v1::Job::PENDING, v1::Job::CANCELLING, v1::Job::SUCCEEDED, v1::Job::FAILED}},
    {v1::Job::CANCELLING, {v1::Job::CANCELLED, v1::Job::SUCCEEDED}},
};

const Row<v1::Attempt::State> kAttemptTable[] = {
    {v1::Attempt::ASSIGNED,
     {v1::Attempt::RUNNING, v1::Attempt::STOPPING, v1::Attempt::LOST, v1::Attempt::SUCCEEDED,
      v1::Attempt::FAILED, v1::Attempt::CANCELLED}},
    {v1::Attempt::RUNNING,
     {v1::Attempt::STOPPING, v1::Attempt::LOST, v1::Attempt::SUCCEEDED, v1::Attempt::FAILED,
      v1::Attempt::CANCELLED}},
    {v1::Attempt::STOPPING,
     {v1::Attempt::LOST, v1::Attempt::SUCCEEDED, v1::Attempt::FAILED, v1::Attempt::CANCELLED}},
    {v1::Attempt::LOST,
     {v1::Attempt::RUNNING, v1::Attempt::STOPPING, v1::Attempt::FAILED, v1::Attempt::FENCED}},
};

template <typename State, std::size_t n>
bool find(const Row<State> (&table)[n], State from, State to) {
  for (const Row<State>& row : table) {
    if (row.from != from) continue;
    for (const State state : row.to) {
      if (state == to) return true;
    }
  }
  return false;
}

}  // namespace

bool may_follow(v1::Job::State from, v1::Job::State to) { return find(kJobTable, from, to); }
bool may_follow(v1::Attempt::State from, v1::Attempt::State to) { return find(kAttemptTable, from, to); }

void move(v1::Job& job, v1::Job::State to) {
  if (!may_follow(job.state(), to)) {
    throw std::logic_error(job.name() + ": " + v1::Job::State_Name(job.state()) + " -> " +
                           v1::Job::State_Name(to));
  }
  job.set_state(to);
}

void move(v1::Attempt& attempt, v1::Attempt::State to) {
  if (!may_follow(attempt.state(), to)) {
    throw std::logic_error(attempt.name() + ": " + v1::Attempt::State_Name(attempt.state()) + " -> " +
                           v1::Attempt::State_Name(to));
  }
  attempt.set_state(to);
}

}  // namespace coat::jobs
