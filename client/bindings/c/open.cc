// Opens and closes requesters.
//
// Opening works on the caller's thread, in order: Opening::Begin settles the kernel target and
// counts the requester, both under target_mutex. Open makes the fabrics, the backend, the stub of
// the host cache, the requester, and last the watch, whose thread uses the requester. An error
// undoes all of it. Closing is refused while tickets, fetches or puts are open.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "attention/device/backend_library.h"
#include "attention/mla_partial.h"
#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/load_link.h"
#include "client/bindings/c/struct_size.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/grpc/host_cache_stub.h"
#include "client/grpc/watch_stub.h"
#include "client/holders/lane_pinning.h"
#include "proto/base/host_port.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "proto/process_facts.h"
#include "transport/fabric.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv::c {
namespace {

// The requester, and what it borrows.
struct Connection {
  explicit Connection(const std::string& address)
      : directory(address, Clock::Real()), holders(Clock::Real()) {}

  DirectoryStub directory;
  HolderStubFactory holders;
  std::unique_ptr<HostCacheStub> cache;  // null if none was named
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::unique_ptr<Requester> requester;
  std::unique_ptr<WatchStub> watch;  // its thread uses the requester
};

std::string TextOr(const char* text, std::string_view otherwise) {
  return std::string(text == nullptr ? otherwise : text);
}

absl::Status MakeFabric(FabricKind kind, const char* verbs_device, Connection& connection) {
  if (kind == FabricKind::kShm) {
    connection.fabrics.push_back(NewShmFabric(Clock::Real()));
  } else if (kind == FabricKind::kTcp) {
    connection.fabrics.push_back(NewTcpFabric(Clock::Real()));
  } else {
    VerbsOptions options;
    options.device = TextOr(verbs_device, "");
    CKV_ASSIGN_OR_RETURN(auto verbs, NewVerbsFabric(options, Clock::Real()));
    connection.fabrics.push_back(std::move(verbs));
  }
  return absl::OkStatus();
}

absl::Status MakeFabrics(const ckv_open_options& options, Connection& connection) {
  const std::string names = TextOr(options.fabrics, "shm,tcp");
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    const auto kind = ParseFabricName(name);
    if (!kind.ok() || *kind == FabricKind::kLoopback) {
      return absl::InvalidArgumentError(
          absl::StrFormat("fabrics: \"%s\" is not shm, tcp or verbs", name));
    }
    CKV_RETURN_IF_ERROR(
        Annotate(MakeFabric(*kind, options.verbs_device, connection), "fabrics: " + name));
  }
  return absl::OkStatus();
}

// The kernel target belongs to the process, so the first requester to open chooses it.
absl::Mutex target_mutex;
uint32_t open_count ABSL_GUARDED_BY(target_mutex) = 0;

// Counts an open requester, and undoes that unless Keep is called.
class Opening {
 public:
  // `target` is the requested kernel target, or null.
  absl::Status Begin(const char* target);
  void Keep() { begun_ = false; }
  ~Opening();

 private:
  bool begun_ = false;
  std::string target_before_;  // if this one forced another
};

absl::Status Opening::Begin(const char* target) {
  absl::MutexLock lock(&target_mutex);
  if (target != nullptr && *target != '\0' && KernelTarget() != target) {
    if (open_count > 0) {
      return absl::FailedPreconditionError(
          absl::StrFormat("kernel_target: %s, but another requester of this process uses %s",
                          target, KernelTarget()));
    }
    std::string before(KernelTarget());
    if (const absl::Status status = ForceKernelTarget(target); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("kernel_target: %s", std::string(status.message())));
    }
    target_before_ = std::move(before);
  }
  ++open_count;
  begun_ = true;
  return absl::OkStatus();
}

void CountClosed() {
  absl::MutexLock lock(&target_mutex);
  --open_count;
}

Opening::~Opening() {
  if (!begun_) return;
  absl::MutexLock lock(&target_mutex);
  --open_count;
  // Requesters that opened meanwhile compute with the target, so it stays while there are any.
  if (open_count == 0 && !target_before_.empty()) ForceKernelTarget(target_before_).IgnoreError();
}

// An address in this library, used to find the library's folder.
constexpr char kHere = 0;

// Chooses as ckvd does. A backend that cannot serve a requester is not used.
absl::StatusOr<BackendStart> ChooseBackend(const ckv_open_options& options) {
  const std::string name = TextOr(options.backend, "");
  if (name.empty()) return BackendStart{Backend::Cpu(), "backend cpu: it is the default"};
  const std::string target = TextOr(options.kernel_target, "");
  if (name == "auto" && !target.empty()) {
    return BackendStart{Backend::Cpu(),
                        absl::StrFormat("backend cpu: kernel_target names %s", target)};
  }
  CKV_ASSIGN_OR_RETURN(BackendStart start, StartBackend(name, FolderOfCode(&kHere), kFromLibrary));
  if (const absl::Status lanes = LaneMemoryFor(start.backend).status(); !lanes.ok()) {
    const std::string why(lanes.message());
    if (name != "auto") return absl::FailedPreconditionError("backend cuda: " + why);
    start = {Backend::Cpu(), "backend cpu: a GPU is not used, " + why, /*is_warning=*/true};
  }
  if (start.is_warning) Log().warn("{}", start.reason);
  return start;
}

RequesterOptions OptionsOf(const ckv_open_options& options, const Connection& connection) {
  RequesterOptions made;
  made.id = TextOr(options.name, absl::StrFormat("ckv-%d", getpid()));
  for (const auto& fabric : connection.fabrics) made.fabrics.push_back(fabric.get());
  if (options.local_cache_bytes == CKV_LOCAL_CACHE_NONE) {
    made.local_cache_bytes = 0;
  } else if (options.local_cache_bytes != 0) {
    made.local_cache_bytes = options.local_cache_bytes;
  }
  if (options.call_count_max != 0) made.call_count_max = options.call_count_max;
  if (options.call_threads != 0) made.call_threads = options.call_threads;
  if (options.connect_timeout_ns != 0)
    made.connect_timeout = After(options.connect_timeout_ns) - Clock::Real()->Now();
  return made;
}

constexpr size_t kHostNameBytesMax = 256;

std::string HostName() {
  char name[kHostNameBytesMax] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// Returns the facts of this program that the directory is to list; unset if there are none.
//   InvalidArgument     the text is too long, or the rank is beyond the count.
absl::StatusOr<std::optional<EngineFacts>> EngineOf(const ckv_open_options& options,
                                                    const std::string& name) {
  std::optional<EngineFacts> engine;
  if (options.announce == nullptr) return engine;
  if (std::strlen(options.announce) > EngineFacts::kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("announce: more than %d bytes", EngineFacts::kTextBytesMax));
  }
  if (options.announce_rank >= std::max(options.announce_rank_count, 1u)) {
    return absl::InvalidArgumentError(absl::StrFormat("announce_rank: %d of %d, counted from 0",
                                                      options.announce_rank,
                                                      options.announce_rank_count));
  }
  engine.emplace();
  engine->name = name;
  engine->host = HostName();
  engine->pid = static_cast<uint32_t>(getpid());
  engine->model = options.announce;
  engine->rank = options.announce_rank;
  engine->rank_count = options.announce_rank_count;
  engine->version = std::string(Version());
  return engine;
}

absl::Status Open(const ckv_open_options& options, std::unique_ptr<ckv_requester>& made) {
  if (options.directory == nullptr || *options.directory == '\0') return Missing("directory");
  const std::string tenant = TextOr(options.tenant, "");
  CKV_RETURN_IF_ERROR(ValidateName("tenant", tenant));
  const auto connection = std::make_shared<Connection>(options.directory);
  CKV_RETURN_IF_ERROR(Annotate(connection->directory.address_status(), "directory"));
  CKV_RETURN_IF_ERROR(MakeFabrics(options, *connection));
  CKV_ASSIGN_OR_RETURN(BackendStart start, ChooseBackend(options));
  RequesterOptions made_of = OptionsOf(options, *connection);
  made_of.backend = start.backend;
  if (options.requester != nullptr && *options.requester != '\0') {
    CKV_RETURN_IF_ERROR(
        Annotate(HostPort::Parse(options.requester, /*port_min=*/1).status(), "requester"));
    connection->cache = std::make_unique<HostCacheStub>(options.requester, Clock::Real());
    made_of.host_cache = connection->cache.get();
  }
  WatchOptions watch = {.addresses = options.directory, .tenant = tenant};
  CKV_ASSIGN_OR_RETURN(watch.engine, EngineOf(options, made_of.id));
  CKV_ASSIGN_OR_RETURN(connection->requester,
                       Requester::Create(made_of, &connection->directory, &connection->holders));
  Requester* const requester = connection->requester.get();
  connection->watch = std::make_unique<WatchStub>(
      watch, [requester](std::string_view corpus) { requester->Invalidate(corpus); },
      [address = std::string(options.directory)](const absl::Status& status) {
        Log().debug("directory {}: {}", address, std::string(status.message()));
      },
      [requester](const Member& member) { requester->OnMemberUp(member); });
  made = std::make_unique<ckv_requester>(connection, requester, tenant, options.directory,
                                         start.backend, std::move(start.reason),
                                         connection->cache.get());
  made->load_link =
      std::make_shared<LoadLink>(options.directory, made_of.id, [connection, requester] {
        std::vector<ChunkPrefix> prefixes;
        for (const ChunkId& id : requester->LocalChunks()) prefixes.push_back(PrefixOf(id));
        return prefixes;
      });
  return absl::OkStatus();
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_open_version(uint32_t api_major, uint32_t api_minor,
                                       const ckv_open_options* options, ckv_requester** requester) {
  if (requester != nullptr) *requester = nullptr;
  return ckv::c::Guard({}, [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (api_major != CKV_API_MAJOR) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the program was compiled for version %d.%d of ckv.h, the library is %d.%d", api_major,
          api_minor, CKV_API_MAJOR, CKV_API_MINOR));
    }
    ckv_open_options taken;
    CKV_RETURN_IF_ERROR(ckv::c::TakeStruct("ckv_open_options", options, taken));
    // Before anything that may look at the target.
    ckv::c::Opening opening;
    CKV_RETURN_IF_ERROR(opening.Begin(taken.kernel_target));
    std::unique_ptr<ckv_requester> made;
    CKV_RETURN_IF_ERROR(ckv::c::Open(taken, made));
    opening.Keep();
    *requester = made.release();
    return absl::OkStatus();
  });
}

extern "C" ckv_status ckv_close(ckv_requester* requester) {
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&] {
    if (requester == nullptr) return absl::OkStatus();
    const uint32_t in_flight = requester->in_flight.load(std::memory_order_acquire);
    if (in_flight > 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "close: still open: %d (tickets, fetches and puts in all); free them first", in_flight));
    }
    delete requester;
    ckv::c::CountClosed();
    return absl::OkStatus();
  });
}
