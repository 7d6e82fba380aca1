#include "server/store/store.h"

namespace coat::store {

bool is_terminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

bool is_terminal(v1::Attempt::State state) {
  return state == v1::Attempt::SUCCEEDED || state == v1::Attempt::FAILED || state == v1::Attempt::CANCELLED ||
         state == v1::Attempt::FENCED;
}

}  // namespace coat::store
