// Redirects the log of the gRPC library to ckv's log.

#pragma once

namespace ckv {

// From this call on, gRPC writes its errors to Log() at level debug, and nothing to stderr. Errors
// that matter are returned as a status, which is logged where it is handled. Lines below severity
// error are dropped, because GRPC_TRACE writes the metadata and the bytes of calls there. Call it
// before gRPC is used.
void LogGrpcErrors();

}  // namespace ckv
