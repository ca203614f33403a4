#include "client/grpc/grpc_log.h"

#include <grpc/support/log.h>

#include "proto/base/log.h"

namespace ckv {
namespace {

void Write(gpr_log_func_args* args) {
  if (args->severity < GPR_LOG_SEVERITY_ERROR) return;
  Log(args->file, args->line, "").debug("grpc: {}", args->message);
}

}  // namespace

void LogGrpcErrors() { gpr_set_log_function(Write); }

}  // namespace ckv
