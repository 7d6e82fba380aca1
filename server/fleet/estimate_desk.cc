#include "server/fleet/estimate_desk.h"

#include <utility>
#include <vector>

namespace coat::fleet {

std::int64_t EstimateDesk::open(const std::string& worker, SteadyTime deadline, Done done) {
  queries_[++last_id_] = {worker, deadline, std::move(done)};
  return last_id_;
}

void EstimateDesk::finish(std::map<std::int64_t, Query>::iterator query, EstimateAnswer answer) {
  answer.worker = query->second.worker;
  const Done done = std::move(query->second.done);
  queries_.erase(query);
  done(answer);
}

void EstimateDesk::answer(const std::string& worker, const v1::EstimateResult& result) {
  const auto query = queries_.find(result.query_id());
  if (query == queries_.end() || query->second.worker != worker) return;
  EstimateAnswer answer;
  if (!result.has_error()) {
    answer.kind = EstimateAnswer::Kind::kEstimate;
    answer.estimate = result.estimate();
  } else {
    const auto reason = result.error().reason();
    const bool refused = reason == v1::ExitStatus::BAD_SPEC || reason == v1::ExitStatus::DATA_ERROR;
    answer.kind = refused ? EstimateAnswer::Kind::kRefused : EstimateAnswer::Kind::kFailed;
    answer.error = result.error();
  }
  finish(query, std::move(answer));
}

void EstimateDesk::worker_left(const std::string& worker) {
  std::vector<std::int64_t> ids;
  for (const auto& [id, query] : queries_) {
    if (query.worker == worker) ids.push_back(id);
  }
  for (const std::int64_t id : ids) finish(queries_.find(id), {.kind = EstimateAnswer::Kind::kWorkerLeft});
}

void EstimateDesk::expire(SteadyTime now) {
  std::vector<std::int64_t> ids;
  for (const auto& [id, query] : queries_) {
    if (query.deadline <= now) ids.push_back(id);
  }
  for (const std::int64_t id : ids) finish(queries_.find(id), {.kind = EstimateAnswer::Kind::kTimeout});
}

void EstimateDesk::close_all() {
  while (!queries_.empty()) finish(queries_.begin(), {.kind = EstimateAnswer::Kind::kWorkerLeft});
}

std::size_t EstimateDesk::open_on(const std::string& worker) const {
  std::size_t open = 0;
  for (const auto& [id, query] : queries_) open += query.worker == worker ? 1U : 0U;
  return open;
}

std::optional<SteadyTime> EstimateDesk::next_deadline() const {
  std::optional<SteadyTime> next;
  for (const auto& [id, query] : queries_) {
    if (!next || query.deadline < *next) next = query.deadline;
  }
  return next;
}

}  // namespace coat::fleet
