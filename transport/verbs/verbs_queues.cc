// The states of a queue pair, on the thread of its connection:
//   Create      takes its share of the device's budget; makes timer, events and completion queues;
//               makes the pair: INIT. It can post receives
//   Establish   connects it to the peer's: RTR, then RTS. It can send
//   StopPair    ERR. Every send completes, as flushed
// The destructor destroys the pair before it drains the last events.

#include "transport/verbs/verbs_queues.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

// The largest number of work requests without a slot in flight at once. They are: hello or welcome,
// a window's binding, a ping or a probe, a pong, a good-bye, the marker of the end.
constexpr uint32_t kControlSends = 6;
// A hello has 40 bytes, a probe 64: one work queue entry of 128 bytes holds either.
constexpr uint32_t kInlineBytes = 64;

bool Watch(int epoll, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

VerbsQueues::VerbsQueues(const VerbsDomain* domain, const VerbsLinkShape& shape)
    : domain_(domain),
      shape_(shape),
      packet_sequence_(static_cast<uint32_t>(RandomWord() & 0xffffff)) {}

VerbsQueues::~VerbsQueues() {
  if (alarm_.has_value()) domain_->device()->Unwatch(&*alarm_);
  pair_.reset();
  if (channel_ != nullptr) DrainEvents();
}

absl::Status VerbsQueues::Create() {
  CKV_ASSIGN_OR_RETURN(
      grant_, domain_->device()->budget().Take(
                  domain_->account(), {.queue_pairs = 1, .receives = shape_.receive_count}));
  CKV_RETURN_IF_ERROR(CreateQueues());
  return CreateQueuePair();
}

absl::Status VerbsQueues::CreateQueues() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) return ErrnoStatus("epoll and timer");
  alarm_.emplace(timer_.get());
  domain_->device()->Watch(&*alarm_);
  ibv_context* const context = domain_->device()->context();
  channel_.reset(ibv_create_comp_channel(context));
  if (channel_ == nullptr) return ErrnoStatus("ibv_create_comp_channel");
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus("fcntl of a completion channel");
  }
  if (!Watch(epoll_.get(), channel_->fd) || !Watch(epoll_.get(), timer_.get())) {
    return ErrnoStatus("epoll");
  }
  // As deep as the queues they serve, so that neither can overflow.
  const uint32_t sends = shape_.send_count + kUnsignalledMax + kControlSends;
  const ibv_device_attr& limits = domain_->device()->limits();
  const auto most = static_cast<uint32_t>(std::min(limits.max_cqe, limits.max_qp_wr));
  if (std::max(sends, shape_.receive_count) > most ||
      shape_.sge_count > static_cast<uint32_t>(limits.max_sge)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a lane of %d sends and %d receives of %d entries: the device has queues of %d and lists "
        "of %d; take fewer or smaller slots",
        sends, shape_.receive_count, shape_.sge_count, most, limits.max_sge));
  }
  receive_queue_.reset(
      ibv_create_cq(context, static_cast<int>(shape_.receive_count), &*alarm_, channel_.get(), 0));
  send_queue_.reset(ibv_create_cq(context, static_cast<int>(sends), &*alarm_, channel_.get(), 0));
  if (receive_queue_ == nullptr || send_queue_ == nullptr) return ErrnoStatus("ibv_create_cq");
  return absl::OkStatus();
}

absl::Status VerbsQueues::CreateQueuePair() {
  ibv_qp_init_attr initial = {};
  initial.qp_context = &*alarm_;
  initial.send_cq = send_queue_.get();
  initial.recv_cq = receive_queue_.get();
  initial.qp_type = IBV_QPT_RC;
  initial.cap.max_send_wr = shape_.send_count + kUnsignalledMax + kControlSends;
  initial.cap.max_recv_wr = shape_.receive_count;
  initial.cap.max_send_sge = shape_.sge_count;
  initial.cap.max_recv_sge = 1;
  initial.cap.max_inline_data = kInlineBytes;
  pair_.reset(ibv_create_qp(domain_->get(), &initial));
  if (pair_ == nullptr) return ErrnoStatus("ibv_create_qp");
  inline_bytes_max_ = initial.cap.max_inline_data;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = domain_->device()->options().port;
  // The access of the peer: none to a holder; writes to a requester, if they are allowed.
  attributes.qp_access_flags = shape_.requester ? IBV_ACCESS_REMOTE_WRITE : 0;
  return Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "INIT");
}

absl::Status VerbsQueues::Modify(ibv_qp_attr& attributes, int mask, const char* what) {
  const int error = ibv_modify_qp(pair_.get(), &attributes, mask);
  if (error == 0) return absl::OkStatus();
  errno = error;
  return ErrnoStatus(absl::StrFormat("queue pair 0x%x to %s", pair_->qp_num, what).c_str());
}

void VerbsQueues::Describe(VerbsEndFrame& end) const {
  const VerbsAddress& address = domain_->device()->address();
  end.gid = address.gid;
  end.qp_number = pair_->qp_num;
  end.packet_sequence = packet_sequence_;
  end.lid = address.lid;
  end.mtu = static_cast<uint8_t>(address.mtu);
  end.ethernet = address.ethernet ? 1 : 0;
}

absl::Status VerbsQueues::Establish(const VerbsEndFrame& peer) {
  const VerbsAddress& here = domain_->device()->address();
  const VerbsOptions& options = domain_->device()->options();
  if (peer.ethernet != (here.ethernet ? 1 : 0)) {
    return absl::UnavailableError("RoCE at one end, InfiniBand at the other");
  }
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min(here.mtu, static_cast<ibv_mtu>(peer.mtu));
  attributes.dest_qp_num = peer.qp_number;
  attributes.rq_psn = peer.packet_sequence;
  attributes.max_dest_rd_atomic = 0;
  attributes.min_rnr_timer = options.min_rnr_timer;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.sl = options.service_level;
  attributes.ah_attr.port_num = options.port;
  attributes.ah_attr.is_global = here.ethernet ? 1 : 0;
  std::copy(peer.gid.begin(), peer.gid.end(), std::begin(attributes.ah_attr.grh.dgid.raw));
  attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(here.gid_index);
  attributes.ah_attr.grh.hop_limit = 64;
  attributes.ah_attr.grh.traffic_class = options.traffic_class;
  CKV_RETURN_IF_ERROR(Modify(attributes,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                             "RTR"));
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options.timeout;
  attributes.retry_cnt = options.retry_count;
  attributes.rnr_retry = options.rnr_retry_count;
  attributes.sq_psn = packet_sequence_;
  attributes.max_rd_atomic = 0;
  CKV_RETURN_IF_ERROR(Modify(attributes,
                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                             "RTS"));
  established_ = true;
  return absl::OkStatus();
}

void VerbsQueues::StartTimer(uint32_t period_ms) noexcept {
  const timespec interval = {period_ms / 1000, static_cast<long>(period_ms % 1000) * 1'000'000};
  const itimerspec period = {interval, interval};
  (void)timerfd_settime(timer_.get(), 0, &period, nullptr);
}

void VerbsQueues::DrainEvents() noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  uint64_t expirations = 0;
  (void)!read(timer_.get(), &expirations, sizeof(expirations));
}

int VerbsQueues::AwaitEvent(int timeout_ms) noexcept {
  pollfd entry = {channel_->fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms);
}

void VerbsQueues::StopPair() noexcept {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
}

}  // namespace ckv
