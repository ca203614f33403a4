# ckvctl against a real fleet; included by CMakeLists.txt.
if(CKV_GRPC)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME ctl_e2e
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ctl_e2e.py
                   --ckvd $<TARGET_FILE:ckvd> --ckvctl $<TARGET_FILE:ckvctl>)
  set_tests_properties(ctl_e2e PROPERTIES TIMEOUT 300 LABELS e2e)
  add_test(NAME replica_e2e
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/replica_e2e.py
                   --ckvd $<TARGET_FILE:ckvd> --ckvctl $<TARGET_FILE:ckvctl>)
  set_tests_properties(replica_e2e PROPERTIES TIMEOUT 300 LABELS e2e)
  add_test(NAME corpus_e2e
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/corpus_e2e.py
                   --ckvd $<TARGET_FILE:ckvd> --ckvctl $<TARGET_FILE:ckvctl>)
  set_tests_properties(corpus_e2e PROPERTIES TIMEOUT 300 LABELS e2e)
  add_test(NAME partition_e2e
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/partition_e2e.py
                   --ckvd $<TARGET_FILE:ckvd> --ckvctl $<TARGET_FILE:ckvctl>)
  set_tests_properties(partition_e2e PROPERTIES TIMEOUT 300 LABELS e2e)
  add_test(NAME verify_e2e
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/verify_e2e.py
                   --ckvd $<TARGET_FILE:ckvd> --ckvctl $<TARGET_FILE:ckvctl>)
  set_tests_properties(verify_e2e PROPERTIES TIMEOUT 300 LABELS e2e)
  # Half a minute of kernels, ten times that under a sanitizer, which has seen them in other tests.
  if(NOT CKV_SANITIZE)
    add_test(NAME characterize_e2e
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/characterize_e2e.py
                     --ckvd $<TARGET_FILE:ckvd> --ckvctl $<TARGET_FILE:ckvctl>)
    set_tests_properties(characterize_e2e PROPERTIES TIMEOUT 300 LABELS e2e)
  endif()
endif()
