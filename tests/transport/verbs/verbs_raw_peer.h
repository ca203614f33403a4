// A peer that uses plain libibverbs and keeps no rules, to hold the fabric to its own; and the
// kernel's list of the RDMA objects that are left.

#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/transport/lane_pair.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv::test {

// One queue pair, one region that any peer may read and write, one completion queue.
class RawPeer {
 public:
  static constexpr size_t kBytes = 64 << 10;

  RawPeer() : memory_(kBytes) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    EXPECT_GT(count, 0);
    context_ = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    domain_ = ibv_alloc_pd(context_);
    region_ = ibv_reg_mr(domain_, memory_.data(), memory_.size(),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    queue_ = ibv_create_cq(context_, 256, nullptr, nullptr, 0);
    ibv_qp_init_attr initial = {};
    initial.send_cq = initial.recv_cq = queue_;
    initial.qp_type = IBV_QPT_RC;
    initial.cap = {64, 64, 1, 1, 64};
    pair_ = ibv_create_qp(domain_, &initial);
    EXPECT_NE(pair_, nullptr);
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    EXPECT_EQ(ibv_modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
  }
  ~RawPeer() {
    ibv_destroy_qp(pair_);
    ibv_destroy_cq(queue_);
    ibv_dereg_mr(region_);
    ibv_dealloc_pd(domain_);
    ibv_close_device(context_);
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  std::span<std::byte> memory() { return memory_; }
  ibv_qp* pair() const { return pair_; }

  // A good end of a lane of `shape`, for a test to make bad.
  VerbsEndFrame Describe(const LaneShape& shape) const {
    VerbsEndFrame end;
    ibv_gid gid = {};
    EXPECT_EQ(ibv_query_gid(context_, 1, kGidIndex, &gid), 0);
    std::copy(std::begin(gid.raw), std::end(gid.raw), end.gid.begin());
    end.qp_number = pair_->qp_num;
    end.packet_sequence = kPacketSequence;
    end.mtu = IBV_MTU_1024;
    end.ethernet = 1;
    end.slot_count = shape.slot_count;
    end.request_bytes_max = shape.request_bytes_max;
    end.reply_bytes_max = shape.reply_bytes_max;
    return end;
  }
  // The same, as an offer: its landing region is memory().
  VerbsEndFrame Offer(const LaneShape& shape) const {
    VerbsEndFrame end = Describe(shape);
    end.generation = 4711;
    end.reply_stride = (shape.reply_bytes_max + 63) / 64 * 64;
    end.landing = reinterpret_cast<uint64_t>(memory_.data()) / 64 * 64 + 64;
    end.landing_key = region_->rkey;
    return end;
  }

  void Connect(const VerbsEndFrame& peer, uint8_t timeout = 14, uint8_t retries = 4) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.qp_number;
    attributes.rq_psn = peer.packet_sequence;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.is_global = 1;
    std::copy(peer.gid.begin(), peer.gid.end(), std::begin(attributes.ah_attr.grh.dgid.raw));
    attributes.ah_attr.grh.sgid_index = kGidIndex;
    attributes.ah_attr.grh.hop_limit = 64;
    EXPECT_EQ(ibv_modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = timeout;
    attributes.retry_cnt = retries;
    attributes.rnr_retry = 3;
    attributes.sq_psn = kPacketSequence;
    attributes.max_rd_atomic = 1;
    EXPECT_EQ(ibv_modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  void PostReceives(int count, uint32_t bytes) {
    for (int i = 0; i < count; ++i) {
      ibv_sge sge = {reinterpret_cast<uint64_t>(memory_.data()), bytes, region_->lkey};
      ibv_recv_wr request = {};
      request.sg_list = &sge;
      request.num_sge = bytes > 0 ? 1 : 0;
      ibv_recv_wr* bad = nullptr;
      EXPECT_EQ(ibv_post_recv(pair_, &request, &bad), 0);
    }
  }

  // Posts one work request of the first `bytes` of memory().
  void Post(ibv_wr_opcode opcode, uint32_t bytes, uint32_t immediate = 0, uint64_t address = 0,
            uint32_t key = 0) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory_.data()), bytes, region_->lkey};
    ibv_send_wr request = {};
    request.sg_list = &sge;
    request.num_sge = bytes > 0 ? 1 : 0;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(immediate);
    request.wr.rdma = {address, key};
    request.wr_id = kSendId;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(pair_, &request, &bad), 0);
  }

  // The next completion of a send, or of a receive.
  std::optional<ibv_wc> Await(bool send) {
    const Instant deadline = Soon();
    while (Clock::Real()->Now() < deadline) {
      for (size_t i = 0; i < kept_.size(); ++i) {
        if ((kept_[i].wr_id == kSendId) != send) continue;
        const ibv_wc found = kept_[i];
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
      }
      ibv_wc completion = {};
      if (ibv_poll_cq(queue_, 1, &completion) == 1) {
        kept_.push_back(completion);
      } else {
        sched_yield();
      }
    }
    ADD_FAILURE() << "no completion in time";
    return std::nullopt;
  }
  ibv_wc_status Send(ibv_wr_opcode opcode, uint32_t bytes, uint32_t immediate = 0,
                     uint64_t address = 0, uint32_t key = 0) {
    Post(opcode, bytes, immediate, address, key);
    const std::optional<ibv_wc> completion = Await(true);
    return completion ? completion->status : IBV_WC_GENERAL_ERR;
  }

  // Sends the hello that `answer` requires for an offer made by Offer.
  ibv_wc_status Hello(const VerbsAnswer& answer) {
    VerbsHello hello;
    hello.hello.invitation = answer.key.id;
    hello.hello.token = answer.key.token;
    hello.generation = 4711;
    return SendHello(hello, sizeof(hello));
  }
  ibv_wc_status SendHello(const VerbsHello& hello, uint32_t bytes) {
    std::memcpy(memory_.data(), &hello, sizeof(hello));
    return Send(IBV_WR_SEND_WITH_IMM, bytes, EncodeImmediate(VerbsControl::kHello));
  }

  // Ends the QP as if it failed by itself.
  void Fail() {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(pair_, &attributes, IBV_QP_STATE), 0);
  }

  static constexpr uint32_t kPacketSequence = 0x1234;

 private:
  static constexpr int kGidIndex = 1;  // IPv4, RoCE v2
  static constexpr uint64_t kSendId = 1;

  std::vector<std::byte> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::vector<ibv_wc> kept_;
};

// What a command prints.
inline std::string OutputOf(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::array<char, 4096> buffer;
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

// How often `what` is in `text`.
inline int CountOf(const std::string& what, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// "pd 1 cq 1 qp 1 ... mr 0 ...": the kernel's count of what is there.
inline std::string KernelResources() { return OutputOf("rdma resource show"); }

}  // namespace ckv::test
