r"""What the engine does with leases: one Lua script for each operation, so that each is atomic for all machines.

All keys have one hash tag and are named to each script, in the order of `KEYS`. There are few, whatever is held:

    state     hash     token (the greatest so far), turn (grows with each change that could let a waiter through),
                       place (the last one in the line), seen and ahead (see below)
    leases    hash     id → {names, capacity, token, about}
    ends      zset     id, by the instant at which it is over
    held      zset     NAME \0 id: in the order of the alphabet, so that a name's holders stand side by side
    waiters   hash     secret → {names, capacity, place, about}
    asked     zset     secret, by the instant at which it was last written down that it asks
    wanted    zset     NAME \0 place \0 secret: a name's waiters in their order

Only what Redis 6.2 and Valkey 7.2 both have is used. Instants are microseconds since the epoch, by the engine's clock,
but never go back: where that clock is set back, or another machine takes the engine's place, time goes on from where it
was. So a lease's time is over no earlier than it should be, and no later than by the step.
"""

KEYS = ("state", "leases", "ends", "held", "waiters", "asked", "wanted")

ENGINE_TIME = r"""
local told = redis.call('TIME')
local now = told[1] * 1000000 + told[2]
"""
"""Says what `now` is."""

_BEGIN = r"""
local state, leases, ends, held, waiters, asked, wanted = unpack(KEYS)
local call = redis.call

-- As the engine writes numbers, fifteen digits are left of them.
local function whole(number)
  return string.format('%.0f', number)
end

local known = call('HMGET', state, 'seen', 'ahead')
local seen, ahead = tonumber(known[1] or 0), tonumber(known[2] or 0)
now = now + ahead
if now < seen then
  call('HSET', state, 'ahead', whole(ahead + seen - now))
  now = seen
elseif now >= seen + 100000 then
  call('HSET', state, 'seen', whole(now))
end

local function next_turn()
  return call('HINCRBY', state, 'turn', 1)
end

local function record(key, field)
  local raw = call('HGET', key, field)
  return raw and cmsgpack.unpack(raw)
end

local function in_line(name, place, secret)
  return name .. '\0' .. string.format('%016.0f', place) .. '\0' .. secret
end

local function end_lease(id)
  local it = record(leases, id)
  call('ZREM', ends, id)
  if not it then return false end
  call('HDEL', leases, id)
  for _, name in ipairs(it.names) do call('ZREM', held, name .. '\0' .. id) end
  next_turn()
  return true
end

local function end_waiting(secret)
  local it = record(waiters, secret)
  call('ZREM', asked, secret)
  if not it then return end
  call('HDEL', waiters, secret)
  for _, name in ipairs(it.names) do call('ZREM', wanted, in_line(name, it.place, secret)) end
  next_turn()
end

-- The last part of a member: the lease's id, or the waiter's secret.
local function behind(member)
  return string.match(member, '^.*%z([^%z]*)$')
end

local function holders_of(name, ...)
  return call('ZRANGEBYLEX', held, '[' .. name .. '\0', '(' .. name .. '\1', ...)
end

local function waiters_of(name, place, ...)
  local to = place and '(' .. in_line(name, place, '') or '(' .. name .. '\1'
  return call('ZRANGEBYLEX', wanted, '[' .. name .. '\0', to, ...)
end

for _, id in ipairs(call('ZRANGEBYSCORE', ends, '-inf', whole(now))) do end_lease(id) end
"""

_FORGET = r"""
for _, secret in ipairs(call('ZRANGEBYSCORE', asked, '-inf', whole(now - 5000000))) do end_waiting(secret) end
"""
"""A waiter that has not asked for five seconds loses its place."""

ACQUIRE = (
    _BEGIN
    + _FORGET
    + r"""
-- id, about, capacity, ttl, floor, most leases, waiter, turn, names...
local id, about, waiter = ARGV[1], ARGV[2], ARGV[7]
local capacity, ttl, floor, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local names = {unpack(ARGV, 9)}

local mine = record(leases, id)
if mine then return {'lease', mine.token} end -- the answer to this was lost

local turn = tonumber(call('HGET', state, 'turn') or 0)
local place
if waiter ~= '' then
  local it = record(waiters, waiter)
  if it then
    if it.capacity == capacity and table.concat(it.names, '\0') == table.concat(names, '\0') then
      place = it.place
      if now >= tonumber(call('ZSCORE', asked, waiter) or 0) + 1000000 then
        call('ZADD', asked, whole(now), waiter)
      end
      if ARGV[8] == whole(turn) then return {'same'} end
    else -- it asks for something else now
      end_waiting(waiter)
    end
  end
end

local taken, before = {}, 0
for _, name in ipairs(names) do
  local first, it = holders_of(name, 'LIMIT', 0, 1)[1], nil
  if first then
    it = record(leases, behind(first))
  else
    first = waiters_of(name, place, 'LIMIT', 0, 1)[1]
    if first then it = record(waiters, behind(first)) end
  end
  if it and it.capacity ~= capacity then return {'capacity', name, it.capacity, it.about} end
  local there = call('ZLEXCOUNT', held, '[' .. name .. '\0', '(' .. name .. '\1')
  local to = place and '(' .. in_line(name, place, '') or '(' .. name .. '\1'
  local earlier = call('ZLEXCOUNT', wanted, '[' .. name .. '\0', to)
  if there + earlier >= capacity then
    taken[#taken + 1] = name
    before = math.max(before, earlier)
  end
end

if #taken == 0 then
  if call('HLEN', leases) >= most then return {'full'} end
  if place then end_waiting(waiter) end
  -- After a start with nothing the counter is 0 again, and the time is not.
  local token = math.max(tonumber(call('HGET', state, 'token') or 0), floor, now - 1) + 1
  call('HSET', state, 'token', whole(token))
  call('HSET', leases, id, cmsgpack.pack({names = names, capacity = capacity, token = token, about = about}))
  call('ZADD', ends, whole(now + ttl), id)
  for _, name in ipairs(names) do call('ZADD', held, 0, name .. '\0' .. id) end
  return {'lease', token}
end

if waiter ~= '' and not place then
  place = call('HINCRBY', state, 'place', 1)
  call('HSET', waiters, waiter, cmsgpack.pack({names = names, capacity = capacity, place = place, about = about}))
  call('ZADD', asked, whole(now), waiter)
  for _, name in ipairs(names) do call('ZADD', wanted, 0, in_line(name, place, waiter)) end
end

-- Who is in the way: the holders, and of those who wait the first for each name.
local holding, line, met = {}, {}, {}
for _, name in ipairs(taken) do
  for _, member in ipairs(holders_of(name)) do
    local key = behind(member)
    local it = not met[key] and record(leases, key)
    met[key] = true
    if it then holding[#holding + 1] = {key, it.about} end
  end
  local first = waiters_of(name, place, 'LIMIT', 0, 1)[1]
  local it = first and record(waiters, behind(first))
  if it then line[#line + 1] = {behind(first), it.about} end
end
local next_end = call('ZRANGE', ends, 0, 0, 'WITHSCORES')[2]
return {
  'wait', tonumber(call('HGET', state, 'turn') or 0), next_end and tonumber(next_end) - now or -1, before,
  taken, holding, line,
}
"""
)

RENEW = (
    _BEGIN
    + r"""
-- id, ttl
local it = record(leases, ARGV[1])
if not it then return false end
call('ZADD', ends, whole(now + tonumber(ARGV[2])), ARGV[1])
next_turn() -- it may end earlier now than the answers to waiters say
return {it.token, it.about, it.names}
"""
)

END = (
    _BEGIN
    + r"""
-- ids of leases, then '', then secrets of waiters; how many leases were held
local ended, are_waiters = 0, false
for _, key in ipairs(ARGV) do
  if key == '' then are_waiters = true
  elseif are_waiters then end_waiting(key)
  elseif end_lease(key) then ended = ended + 1
  end
end
return ended
"""
)

STANDINGS = (
    _BEGIN
    + _FORGET
    + r"""
-- names; none: all that are held or waited for
local names = ARGV
if #names == 0 then
  local met = {}
  for _, key in ipairs({held, wanted}) do
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      local name = string.match(member, '^[^%z]*')
      if not met[name] then names[#names + 1] = name end
      met[name] = true
    end
  end
end
local found = {}
for _, name in ipairs(names) do
  local holding, line, capacity = {}, {}, 1
  for _, member in ipairs(holders_of(name)) do
    local id = behind(member)
    local it = record(leases, id)
    if it then
      capacity = it.capacity
      holding[#holding + 1] = {id, it.about, it.token, tonumber(call('ZSCORE', ends, id) or now) - now, it.names}
    end
  end
  for _, member in ipairs(waiters_of(name)) do
    local secret = behind(member)
    local it = record(waiters, secret)
    if it then
      capacity = it.capacity
      line[#line + 1] = {secret, it.about}
    end
  end
  found[#found + 1] = {name, capacity, holding, line}
end
return {tonumber(call('HGET', state, 'token') or 0), found}
"""
)
