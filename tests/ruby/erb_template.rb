# SPDX-License-Identifier: Apache-2.0
# A page: a template that calls another one, both with file names of their own.

require_relative "oracle"
begin
  require "erb"
rescue LoadError
  unavailable("no erb")
end

class Page
  LAYOUT = ERB.new(<<~HTML).tap { |erb| erb.filename = "views/layout.html.erb" }
    <html>
    <% [1].each do |number| %>
      <p><%= number %></p>

      <%= yield %>
    <% end %>
    </html>
  HTML
  BODY = ERB.new("<ul>\n<% 2.times do |n| %>\n<li><%= spin if n == 1 %></li>\n<% end %>\n</ul>\n")

  LAYOUT.def_method(self, "render_layout")

  def render
    render_layout { BODY.result(binding) }
  end

  def spin
    expect(caller_locations(0)); nil while true
  end
end

Page.new.render
