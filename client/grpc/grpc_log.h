// Sends what gRPC's library logs to ckv's log.

#pragma once

namespace ckv {

// From here on gRPC writes its errors to Log(), at level debug, and nothing to stderr. Errors that
// matter come as a status, which is logged where it is handled. GRPC_TRACE adds lines below an
// error, which have the metadata and the bytes of calls. They are dropped. Call it before gRPC is
// used.
void LogGrpcErrors();

}  // namespace ckv
