-- Judges the answer of a completion while it passes, without holding it back.
--
-- Writes one string to the metadata llm_resp:end, from where the access log takes it:
--   ok            every choice ended with a reason in GOOD
--   error         an error object was seen (a stream reports errors with status 200)
--   no_finish     no choice has a finish_reason
--   partial       some choices have none
--   finish_WORD   a choice ended with WORD, e.g. finish_abort
--   opaque        compressed: cannot be read
--   queue_full    a 503 that says the engine's own queue is full
-- No value at the end of a stream: it was cut before it was complete.
--
-- Buffers are not events: a key may lie across two of them, hence the carry. A quote inside generated text is escaped,
-- so a bare "finish_reason" is always a key. Metadata is written once per answer: each write costs as much as a scan.

local GOOD = { stop = true, length = true, tool_calls = true, function_call = true, content_filter = true }
local CARRY = 64 -- bytes; longer than any key with its value that is looked for
local find, match, sub, tonumber = string.find, string.match, string.sub, tonumber

local function put(h, verdict)
  h:streamInfo():dynamicMetadata():set("llm_resp", "end", verdict)
end

-- Counts the finish reasons in s that end after position old.
local function scan_finish(st, s, old)
  local _, p = find(s, '"finish_reason"', 1, true)
  while p do
    local _, e, word = find(s, '^%s*:%s*"([%w_%-]*)"', p + 1)
    if not e then
      _, e = find(s, "^%s*:%s*n", p + 1)
    end
    if e and e > old then
      st.keys = st.keys + 1
      if word then
        if GOOD[word] then
          st.good = st.good + 1
        else
          st.bad = st.bad or word
        end
      end
    end
    _, p = find(s, '"finish_reason"', p + 1, true)
  end
end

-- Remembers the highest choice index: how many finish reasons a stream owes.
local function scan_index(st, s)
  local _, p = find(s, '"choices"', 1, true)
  while p do
    local i = tonumber(match(s, '^%s*:%s*%[%s*{%s*"index"%s*:%s*(%d+)%D', p + 1))
    if i and i > st.top then
      st.top = i
    end
    _, p = find(s, '"choices"', p + 1, true)
  end
end

local function scan_error(st, s)
  local _, p = find(s, '"error"', 1, true)
  while p do
    if find(s, "^%s*:%s*[^%sn]", p + 1) then
      st.error = true
      return
    end
    _, p = find(s, '"error"', p + 1, true)
  end
end

local function verdict(st, sse)
  if st.error then
    return "error"
  elseif st.bad then
    return "finish_" .. st.bad
  elseif st.good == 0 then
    return "no_finish"
  elseif st.good < (sse and st.top + 1 or st.keys) then
    return "partial"
  end
  return "ok"
end

local function judge_refusal(h)
  local s = ""
  for chunk in h:bodyChunks() do
    s = s .. chunk:getBytes(0, chunk:length())
    if find(s, "on a different instance", 1, true) then
      put(h, "queue_full")
      return
    end
    s = sub(s, -CARRY)
  end
end

function envoy_on_response(h)
  local headers = h:headers()
  local status = headers:get(":status")
  if status ~= "200" then
    if status == "503" then
      judge_refusal(h)
    end
    return
  end
  local content_type = headers:get("content-type")
  if not content_type then
    return
  end
  local sse = find(content_type, "event-stream", 1, true)
  if not sse and not find(content_type, "json", 1, true) then
    return
  end
  local encoding = headers:get("content-encoding")
  if encoding and encoding ~= "identity" then
    put(h, "opaque")
    return
  end
  local st = { keys = 0, good = 0, top = -1 }
  local s, said = "\n", nil
  for chunk in h:bodyChunks() do
    local old, n = #s, chunk:length()
    if n > 0 then
      s = s .. chunk:getBytes(0, n)
      scan_finish(st, s, old)
      if not st.error then
        scan_error(st, s)
        if st.error then
          said = "error"
          put(h, said)
        end
      end
      if sse then
        scan_index(st, s)
        -- A client may leave as soon as it has [DONE], so the verdict cannot wait for the end of the stream.
        if not said and find(s, "\ndata: [DONE]", 1, true) then
          said = verdict(st, sse)
          put(h, said)
        end
      end
      s = sub(s, -CARRY)
    end
  end
  local final = verdict(st, sse)
  if final ~= said then
    put(h, final)
  end
end
