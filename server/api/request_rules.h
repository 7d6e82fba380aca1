// What a request must keep to, before anything is done for it. All functions are pure; an error is
// INVALID_ARGUMENT with the field and the fix.
#pragma once

#include <optional>
#include <string>

#include "proto/coat/v1/job_service.pb.h"
#include "proto/common/result.h"
#include "server/store/store.h"

namespace coat::api {

std::optional<ServiceError> check_request_id(const std::string& request_id);
// "jobs/J" of "jobs/J" or "J".
Result<std::string> check_job_name(const std::string& field, const std::string& name);
std::optional<ServiceError> check_not_negative(const std::string& field, std::int64_t value);

// The query, where the page's token, made by page_token() for the same filters, says.
Result<store::JobQuery> check_list(const v1::ListJobsRequest& request);
// Empty for `before_order` 0, which is the end of the list.
std::string page_token(const v1::ListJobsRequest& request, std::int64_t before_order);

}  // namespace coat::api
