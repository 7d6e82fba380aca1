#include "worker/trainer/failures.h"

#include <new>
#include <string>

#include <c10/util/Exception.h>

#include "worker/core/base/error.h"
#include "worker/protocol/exit_codes.h"

namespace coat::trainer {
namespace {

using protocol::ExitCode;

protocol::Failure failure(ExitCode code, std::string message, std::string field = "", std::string fix = "") {
  return {.exit_code = static_cast<int>(code),
          .message = std::move(message),
          .field = std::move(field),
          .fix = std::move(fix)};
}

constexpr const char* kMemoryFix = "lower training.micro_batch, or choose a recipe that holds less";

// libtorch's allocators report through c10::Error; the CPU's has no type of its own.
bool is_allocation_failure(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string what = error.what_without_backtrace();
  return what.find("DefaultCPUAllocator") != std::string::npos ||
         what.find("not enough memory") != std::string::npos;
}

// cuDNN's and cuBLAS's have no type that every build knows.
bool is_device_failure(const c10::Error& error) {
  const std::string what = error.what_without_backtrace();
  return dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
         what.find("cuDNN error") != std::string::npos || what.find("CUDA error") != std::string::npos;
}

}  // namespace

protocol::Failure failure_of(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const SpecError& error) {
    return failure(ExitCode::kBadSpec, error.what(), error.field, error.fix);
  } catch (const DataError& error) {
    return failure(ExitCode::kDataError, error.what(), error.field, error.fix);
  } catch (const CheckpointError& error) {
    return failure(ExitCode::kCheckpointError, error.what());
  } catch (const OutOfDeviceMemoryError& error) {
    return failure(ExitCode::kOutOfDeviceMemory, error.what(), "", kMemoryFix);
  } catch (const NonFiniteLossError& error) {
    return failure(ExitCode::kNonFiniteLoss, error.what(), "", "lower optimizer.learning_rate");
  } catch (const CollectiveError& error) {
    return failure(ExitCode::kCollectiveFailed, error.what());
  } catch (const DeviceFaultError& error) {
    return failure(ExitCode::kDeviceFault, error.what());
  } catch (const FencedError& error) {
    return failure(ExitCode::kFenced, error.what());
  } catch (const UnsupportedError& error) {
    return failure(ExitCode::kBadSpec, error.what(), "resources.device", "write resources.device: cpu");
  } catch (const std::bad_alloc&) {
    return failure(ExitCode::kOutOfDeviceMemory, "the machine has no memory left for the job", "",
                   kMemoryFix);
  } catch (const c10::Error& error) {
    if (is_allocation_failure(error)) {
      return failure(ExitCode::kOutOfDeviceMemory, error.what_without_backtrace(), "", kMemoryFix);
    }
    if (is_device_failure(error)) return failure(ExitCode::kDeviceFault, error.what_without_backtrace());
    return failure(ExitCode::kInternal, error.what());
  } catch (const std::exception& error) {
    return failure(ExitCode::kInternal, error.what());
  } catch (...) {
    return failure(ExitCode::kInternal, "an unknown exception");
  }
}

}  // namespace coat::trainer
