// The C functions that ggml calls, in four parts: the backend of one context, which computes a
// graph's attentions one after another (ComputeGraph); the device, which takes an op or refuses it
// (SupportsOp); functions for programs (attach, check, counters, sessions of an eval callback); and
// the registration. No exception may enter C code, so each function that can throw is Guarded. ggml
// calls them on its own threads; Process has what they share.

#include "client/bindings/ggml/module/backend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/bindings/ggml/attach_state.h"
#include "client/bindings/ggml/ckv_ggml.h"
#include "client/bindings/ggml/module/eval_session.h"
#include "client/bindings/ggml/module/process.h"
#include "client/bindings/ggml/module/tensor_op.h"
#include "client/bindings/ggml/op_attender.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv::ggml {
namespace {

constexpr Duration kAttachTimeout = std::chrono::seconds(10);

// Calls `function` for C code, which no exception may cross. After one, of memory or threads that
// there are not, returns `failed`.
template <typename Result, typename Function>
Result Guarded(Result failed, const Function& function) noexcept {
  try {
    return function();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ckv: llama.cpp: %s\n", error.what());
    return failed;
  }
}

// Set once, before the registration is returned.
GgmlApi ggml_api;

// ---- one context's backend

OpAttender& AttenderOf(ggml_backend_t backend) {
  return *static_cast<OpAttender*>(backend->context);
}

const char* BackendName(ggml_backend_t) { return "CKV"; }

void FreeBackend(ggml_backend_t backend) {
  delete &AttenderOf(backend);
  delete backend;
  Process::Get().EndContext();
}

absl::Status ComputeNode(OpAttender& attender, const ggml_tensor& node) {
  CKV_RETURN_IF_ERROR(Process::Get().settings().status());
  const OpVerdict verdict = JudgeOp(node, ggml_api.type_name);
  if (verdict.verdict != Verdict::kTaken) {
    return absl::FailedPreconditionError("CKV_GGML_CORPUS is set, and ckv cannot take it: " +
                                         verdict.reason);
  }
  return attender.Attend(OpOf(node));
}

ggml_status ComputeGraph(OpAttender& attender, ggml_cgraph* graph) {
  for (int i = 0; i < ggml_api.graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_api.graph_node(graph, i);
    // Products are there only to fail: those of an attention that SupportsOp must not leave.
    const bool attends = node->op == GGML_OP_FLASH_ATTN_EXT || node->op == GGML_OP_MUL_MAT;
    if (!attends || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;
    if (const absl::Status status = ComputeNode(attender, *node); !status.ok()) {
      Log().error("llama.cpp: the attention of layer {} fails: {}", LayerOfOp(*node),
                  std::string(status.message()));
      return GGML_STATUS_FAILED;
    }
  }
  return GGML_STATUS_SUCCESS;
}

ggml_status Compute(ggml_backend_t backend, ggml_cgraph* graph) {
  return Guarded(GGML_STATUS_FAILED, [&] { return ComputeGraph(AttenderOf(backend), graph); });
}

void SetThreads(ggml_backend_t backend, int thread_count) {
  const auto count = static_cast<uint32_t>(std::max(1, thread_count));
  Process::Get().NoteThreads(count);
  AttenderOf(backend).set_thread_count(count);
}

// ---- the device

const char* DeviceName(ggml_backend_dev_t) { return "CKV"; }
const char* DeviceDescription(ggml_backend_dev_t) {
  return "attention with MLA, of corpora where they are";
}
void DeviceMemory(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }
void DeviceProps(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  *props = {};
  props->name = DeviceName(device);
  props->description = DeviceDescription(device);
  props->type = DeviceType(device);
}
ggml_backend_buffer_type_t DeviceBufferType(ggml_backend_dev_t) {
  return ggml_api.cpu_buffer_type();
}
bool SupportsBufferType(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return ggml_api.buft_is_host(type);
}

bool SupportsOp(ggml_backend_dev_t, const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    default:
      break;
  }
  return Guarded(false, [&] {
    Process& process = Process::Get();
    if (process.left_to_callback()) return false;
    const OpVerdict verdict = JudgeOp(*node, ggml_api.type_name);
    if (verdict.verdict == Verdict::kRefused) {
      process.NoteRefused(verdict.reason);
      return process.takes_all();  // and fails it
    }
    if (verdict.verdict != Verdict::kTaken) return false;
    process.NoteOffered();
    return true;
  });
}

ggml_backend_t InitBackend(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {'c',  'k',  'v',  '-',  'g',  'g',  'm',  'l',
                           0x5d, 0x11, 0x9a, 0x4e, 0xb3, 0x07, 0xc2, 0x68};
  return Guarded<ggml_backend_t>(nullptr, [&]() -> ggml_backend_t {
    auto backend = std::make_unique<ggml_backend>();
    backend->guid = &guid;
    backend->iface.get_name = BackendName;
    backend->iface.free = FreeBackend;
    backend->iface.graph_compute = Compute;
    backend->device = device;
    std::unique_ptr<OpAttender> attender = Process::Get().NewAttender();
    if (!Process::Get().BeginContext()) {
      Log().error(
          "llama.cpp: this context has no session, and others have one: ckv_eval_open, or "
          "client/bindings/ggml/ckv_eval.h, for each context of the process");
      return nullptr;
    }
    backend->context = attender.release();
    return backend.release();
  });
}

// ---- functions for programs

// The corpus' state, and the position after it.
absl::StatusOr<std::vector<std::byte>> StateOf(const char* name, const char* tenant,
                                               const AttachSpec& spec, uint64_t& next) {
  const absl::StatusOr<Requester*> requester = Process::Get().requester();
  if (!requester.ok()) return requester.status();
  const auto corpus = (*requester)
                          ->Resolve(name == nullptr ? "" : name, tenant == nullptr ? "" : tenant,
                                    Clock::Real()->Now() + kAttachTimeout);
  if (!corpus.ok()) return corpus.status();
  return AttachStateOf(**corpus, spec, next);
}

int64_t AttachTo(const char* corpus, const char* tenant, int64_t position, uint32_t stream_count,
                 void* out, size_t size, int64_t* next_position) {
  AttachSpec spec;
  spec.stream_count = stream_count;
  if (position >= 0) spec.position = static_cast<uint64_t>(position);
  uint64_t next = 0;
  const auto state = StateOf(corpus, tenant, spec, next);
  if (!state.ok()) {
    Log().error("llama.cpp: attach: {}", std::string(state.status().message()));
    return -1;
  }
  if (out != nullptr && state->size() <= size) std::memcpy(out, state->data(), state->size());
  if (next_position != nullptr) *next_position = static_cast<int64_t>(next);
  return static_cast<int64_t>(state->size());
}

int64_t Attach(const char* corpus, const char* tenant, int64_t position, uint32_t stream_count,
               void* out, size_t size, int64_t* next_position) {
  return Guarded(int64_t{-1}, [&] {
    return AttachTo(corpus, tenant, position, stream_count, out, size, next_position);
  });
}

int CheckInto(char* text, size_t size) {
  bool good = false;
  const std::string lines = Process::Get().Check(good);
  if (text != nullptr && size > 0) {
    const size_t count = std::min(size - 1, lines.size());
    std::memcpy(text, lines.data(), count);
    text[count] = 0;
  }
  return good ? 0 : 1;
}

int Check(char* text, size_t size) {
  return Guarded(1, [&] { return CheckInto(text, size); });
}

uint64_t CounterOf(const char* name) {
  const OpCounters& counters = Process::Get().counters();
  const std::pair<std::string_view, const std::atomic<uint64_t>*> all[] = {
      {"ops", &counters.ops},
      {"ops_routed", &counters.ops_routed},
      {"ops_failed", &counters.ops_failed},
      {"rows", &counters.rows},
      {"rows_routed", &counters.rows_routed},
      {"sent_bytes", &counters.sent_bytes},
      {"received_bytes", &counters.received_bytes},
      {"prefetched_bytes", &counters.prefetched_bytes}};
  for (const auto& [known, counter] : all) {
    if (name != nullptr && known == name) return counter->load(std::memory_order_relaxed);
  }
  return UINT64_MAX;
}

void* OpenEval(uint32_t thread_count) {
  return Guarded<void*>(nullptr, [&]() -> void* {
    std::unique_ptr<OpAttender> attender = Process::Get().NewAttender();
    Process::Get().NoteThreads(thread_count);
    attender->set_thread_count(thread_count);
    auto session = std::make_unique<EvalSession>(ggml_api, std::move(attender));
    if (Process::Get().BeginEval()) return session.release();
    Log().error("llama.cpp: a context without a session is there: open sessions first");
    return nullptr;
  });
}
bool Eval(ggml_tensor* node, bool ask, void* session) {
  auto& eval = *static_cast<EvalSession*>(session);
  if (ask) return Guarded(true, [&] { return eval.Wants(*node); });
  eval.See(*node);
  return true;
}
int TakeEvalFailure(void* session) {
  return static_cast<EvalSession*>(session)->TakeFailure() ? 1 : 0;
}
void CloseEval(void* session) {
  delete static_cast<EvalSession*>(session);
  Process::Get().EndEval();
}

// ---- the registration

const char* RegistrationName(ggml_backend_reg_t) { return "CKV"; }
size_t DeviceCount(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t DeviceAt(ggml_backend_reg_t registration, size_t) {
  static ggml_backend_device device = [registration] {
    ggml_backend_device made{};
    made.iface.get_name = DeviceName;
    made.iface.get_description = DeviceDescription;
    made.iface.get_memory = DeviceMemory;
    made.iface.get_type = DeviceType;
    made.iface.get_props = DeviceProps;
    made.iface.init_backend = InitBackend;
    made.iface.get_buffer_type = DeviceBufferType;
    made.iface.supports_op = SupportsOp;
    made.iface.supports_buft = SupportsBufferType;
    made.reg = registration;
    return made;
  }();
  return &device;
}

void* ProcAddress(ggml_backend_reg_t, const char* name) {
  const std::string_view wanted(name);
  const ckv_attach_t attach = Attach;
  const ckv_check_t check = Check;
  const ckv_counter_t counter = CounterOf;
  const ggml_backend_set_n_threads_t set_threads = SetThreads;
  if (wanted == "ckv_attach") return reinterpret_cast<void*>(attach);
  if (wanted == "ckv_check") return reinterpret_cast<void*>(check);
  if (wanted == "ckv_counter") return reinterpret_cast<void*>(counter);
  const ckv_eval_open_t open_eval = OpenEval;
  const ckv_eval_t eval = Eval;
  const ckv_eval_take_failure_t take_failure = TakeEvalFailure;
  const ckv_eval_close_t close_eval = CloseEval;
  if (wanted == "ckv_eval_open") return reinterpret_cast<void*>(open_eval);
  if (wanted == "ckv_eval") return reinterpret_cast<void*>(eval);
  if (wanted == "ckv_eval_take_failure") return reinterpret_cast<void*>(take_failure);
  if (wanted == "ckv_eval_close") return reinterpret_cast<void*>(close_eval);
  if (wanted == "ggml_backend_set_n_threads") return reinterpret_cast<void*>(set_threads);
  return nullptr;
}

}  // namespace

ggml_backend_reg_t BackendOf(const GgmlApi& api) {
  ggml_api = api;
  static ggml_backend_reg registration = [] {
    ggml_backend_reg made{};
    made.api_version = GGML_BACKEND_API_VERSION;
    made.iface.get_name = RegistrationName;
    made.iface.get_device_count = DeviceCount;
    made.iface.get_device = DeviceAt;
    made.iface.get_proc_address = ProcAddress;
    return made;
  }();
  return &registration;
}

}  // namespace ckv::ggml
